"""Refusals and failures of a worker, with their HTTP status.

```
Refusal(Exception)        nothing has changed: the call is wrong or late, or the source is bad (4xx)
EngineFailure(Exception)  the engine failed (500); `touched` tells whether its weights may have changed
```
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.protocol import Reason

# 422: the source is bad, and a retry does not help. 409: the call conflicts with a state that passes.
_STATUS = {
    Reason.SOURCE_ABSENT: 422,
    Reason.SOURCE_NOT_FOUND: 422,
    Reason.SOURCE_OUTSIDE_ROOTS: 422,
    Reason.SOURCE_UNREADABLE: 422,
    Reason.SOURCE_NOT_READY: 409,
    Reason.CHECKPOINT_TRUNCATED: 422,
    Reason.CHECKPOINT_MALFORMED: 422,
    Reason.CHECKPOINT_AMBIGUOUS: 422,
    Reason.CHECKPOINT_NOT_FINITE: 422,
    Reason.CHECKPOINT_MISMATCH: 422,
    Reason.CHECKPOINT_CHANGED: 422,
    Reason.BASE_MISSING: 422,
    Reason.DELTA_MISMATCH: 422,
    Reason.DIGEST_MISMATCH: 422,
    Reason.PEER_UNREADABLE: 409,
    Reason.SUPERSEDED: 409,
    Reason.STALE_EPOCH: 409,
    Reason.HELD_BY_ANOTHER: 409,
    Reason.WRONG_PHASE: 409,
    Reason.NOT_STAGED: 409,
    Reason.VERSION_MISMATCH: 409,
    Reason.VERSION_REUSED: 409,
    Reason.BROKEN: 409,
    Reason.ADAPTERS_OFF: 409,
    Reason.NO_ADAPTER_SLOT: 409,
    Reason.NOT_YOURS_TO_DRIVE: 409,
    Reason.NOT_AVAILABLE: 409,
    Reason.UNAUTHORIZED: 401,
    Reason.WRONG_POD: 421,
    Reason.STALE_CALL: 409,
    Reason.BAD_REQUEST: 400,
    Reason.ENGINE_FAILED: 500,
    Reason.PROBE_FAILED: 500,
}

MESSAGE_LIMIT = 1000


def status_of(reason: Reason) -> int:
    """Return the HTTP status of a reason: 4xx for a refusal, 5xx for a failure of the engine."""
    return _STATUS[reason]


class Refusal(Exception):
    """The worker refuses a call, and has changed nothing."""

    def __init__(
        self, reason: Reason, message: str, *, retry_after_seconds: float | None = None
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = shorten(message)
        self.retry_after_seconds = retry_after_seconds


class EngineFailure(Exception):
    """The engine failed.

    Fields:
        touched: whether its weights may have changed. If so, the worker must not serve them.
    """

    def __init__(
        self, message: str, *, touched: bool, reason: Reason = Reason.ENGINE_FAILED
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = shorten(message)
        self.touched = touched


def shorten(message: str, limit: int = MESSAGE_LIMIT) -> str:
    """Return the message in one line of at most `limit` characters, for a condition or an event.

    Names of files and tensors may hold bytes that are not valid UTF-8. They are escaped, because JSON
    cannot carry them.
    """
    line = " ".join(message.encode(errors="backslashreplace").decode().split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, whose plural ends in s: `1 request`, `2 requests`."""
    return f"{number} {noun if number == 1 else f'{noun}s'}"


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal or failure, kept until the next success.

    Fields:
        at: when it happened, in seconds of the worker's clock.
        source: the source of the weights as text; None if it is unknown.
    """

    version: str | None
    reason: Reason
    message: str
    at: float
    run_id: str | None = None
    source: str | None = None
    retry_after_seconds: float | None = None
