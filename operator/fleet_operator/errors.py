"""Everything that can go wrong with a call, told apart by what the caller should do.

    FleetError
    ├── Retryable     passing: try again, after `after_seconds` if given (429, 5xx, time-outs)
    │   └── Unknown   the request was sent and no answer came: observe before repeating
    ├── Conflict      somebody else wrote first: observe again, quietly (409, failed preconditions)
    ├── NotFound      the object is not there (404)
    └── Terminal      repeating cannot help: a person or a new spec must (400, 403, 422)
        ├── NameTaken      an object of this name belongs to something else
        └── TokenUnusable  there is no usable token for the workers' admin ports

Library errors are mapped to these once, in `adapters`.
"""

from __future__ import annotations


class FleetError(Exception):
    """Base of all errors of the operator; the message is fit for a person."""


class Retryable(FleetError):
    """Passing; try again."""

    def __init__(self, message: str, *, after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


class Unknown(Retryable):
    """The request was sent, whether it took effect is not known."""


class Conflict(FleetError):
    """The object changed in between."""


class NotFound(FleetError):
    """The object does not exist."""


class Terminal(FleetError):
    """Repeating the same request cannot succeed."""


class NameTaken(Terminal):
    """An object of this name exists and belongs to something else.

    `may_pass`: what holds it may be about to go, as a deleted fleet's objects are.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class TokenUnusable(Terminal):
    """There is a Secret for the workers' token, and no usable token in it."""
