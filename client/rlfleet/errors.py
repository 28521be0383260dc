"""The errors of the client, by what the caller can do about each."""

from __future__ import annotations

from typing import Any


class RlfleetError(Exception):
    """Base of all errors of this package. They can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        """How pickle makes the error again. It would call the class with the words alone."""
        return _restored, (type(self), self.args, dict(self.__dict__))


class Refused(RlfleetError):
    """The fleet does not take the version. The applied version keeps serving.

    Fields:
        version: the requested version.
        reason: a reason from docs/reference/conditions.md. `Invalid` if the API server or the client has
            refused the request itself; `SourceFixed` if the version would name the files of another one.
        message: an explanation, and the remedy.
    """

    def __init__(self, version: str, reason: str, message: str) -> None:
        super().__init__(f"version {version} is refused, {reason}: {message}")
        self.version = version
        self.reason = reason
        self.message = message


class Superseded(RlfleetError):
    """Another writer has asked for another version before this one was applied.

    Fields:
        version: the requested version.
        by: the version that is desired now.
        writer: the field manager that has written it; empty if it is not known.
    """

    def __init__(self, version: str, by: str, writer: str = "") -> None:
        of = f" of writer {writer!r}" if writer else ""
        super().__init__(
            f"version {version} was replaced by {by}{of} before it was applied; let one writer publish, "
            "or wait for the newer version with wait()"
        )
        self.version = version
        self.by = by
        self.writer = writer


class TimedOut(RlfleetError, TimeoutError):
    """The rollout has not ended in time. The version stays desired, and the rollout continues.

    Fields:
        version: the requested version.
    """

    def __init__(self, version: str, message: str) -> None:
        super().__init__(message)
        self.version = version


class NotFound(RlfleetError):
    """The object, its namespace or its kind does not exist."""


class Forbidden(RlfleetError):
    """The credentials are refused, or lack a right."""


class Unauthorized(Forbidden):
    """The credentials are refused, so that no request succeeds."""


class Unavailable(RlfleetError, ConnectionError):
    """The API server does not answer, or asks to retry later.

    Fields:
        retry_after_seconds: the server's `Retry-After`; None if it sends none.
    """

    def __init__(self, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NotConfigured(RlfleetError):
    """No cluster is configured, or its configuration cannot be used."""


class IncompleteReply(RlfleetError, ValueError):
    """A reply lacks what an audit needs; the message names the field of the request that asks for it."""


class UnusableWeights(RlfleetError, ValueError):
    """Weights that a trainer gave cannot be written as a version; the message names what to change."""


class NotWritten(RlfleetError, OSError):
    """The files of a version could not be written, so that it does not exist."""


def _restored(kind: type[RlfleetError], words: tuple[Any, ...], fields: dict[str, Any]) -> Any:
    error = kind.__new__(kind)
    error.args = words
    error.__dict__.update(fields)
    return error
