"""The operator's errors, one class for each reaction of the caller.

    FleetError
    ├── Retryable     temporary: try again, after `after_seconds` if given (429, 5xx, timeouts)
    │   ├── Unknown   the request was sent and no answer came: observe before repeating
    │   ├── Silent    a watch delivered nothing for longer than one does that works
    │   └── Broken    a watch began, and did not end as one does that works
    ├── Conflict      the object has changed: observe again, without a log line (409, failed preconditions)
    ├── NotFound      the object does not exist (404)
    └── Terminal      the same request fails again until the spec or the cluster changes (400, 403, 422)
        ├── NameTaken      an object of this name belongs to something else
        ├── KindMissing    the API server does not know the kind of the object
        ├── TokenUnusable  the Secret holds no usable admin token
        ├── WriteUndone    the write was accepted, and the object is not as it was written
        ├── TooLarge       the answer has more bytes than are read
        └── ObjectUnread   an object has more bytes than are read, or labels that it cannot have

The modules in `clients` map library errors to these.
"""

from __future__ import annotations


class FleetError(Exception):
    """Base of all errors of the operator. Messages appear in conditions and logs."""


class Retryable(FleetError):
    """A temporary failure; try again."""

    def __init__(self, message: str, *, after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.after_seconds = after_seconds


class Unknown(Retryable):
    """The request was sent, and may have taken effect."""


class Silent(Retryable):
    """A watch delivered nothing, not even its end, for longer than one does that works."""


class Broken(Retryable):
    """A watch began, and did not end as one does that works."""


class Conflict(FleetError):
    """The object changed since it was read."""


class NotFound(FleetError):
    """The object does not exist."""


class Terminal(FleetError):
    """Repeating the same request cannot succeed."""


class NameTaken(Terminal):
    """An object of this name exists and belongs to something else.

    `may_pass`: whether the other object may disappear soon, as those of a deleted fleet do.
    """

    def __init__(self, message: str, *, may_pass: bool = False) -> None:
        super().__init__(message)
        self.may_pass = may_pass


class KindMissing(Terminal):
    """The API server does not know the kind of an object: its CRD is not installed."""

    after_seconds = 30.0
    """The wait before the next attempt."""


class TokenUnusable(Terminal):
    """The Secret for the workers' admin token exists, and holds no usable token."""


class WriteUndone(Terminal):
    """The API server accepted a write, and an admission webhook or another controller changes the object
    back.
    """


class TooLarge(Terminal):
    """The answer to a request has more bytes than are read. A list may ask for fewer objects at a time."""


class ObjectUnread(Terminal):
    """An object has more bytes than are read, so that large parts of it are not known, or it has the labels of a worker
    and not its name.
    """
