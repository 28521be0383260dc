"""Faults of a network and a busy API server, by chance, from a seed that is printed."""

from __future__ import annotations

import json
import random
from collections import Counter
from enum import Enum

from aiohttp import web

_GONE = {
    "kind": "Status",
    "apiVersion": "v1",
    "status": "Failure",
    "message": "The provided resource version is too old (spoilt by the test)",
    "reason": "Expired",
    "code": 410,
}


class Fault(Enum):
    """One way to spoil a request."""

    CUT_STREAM = "the watch is cut"
    GONE = "410 for a watch"
    CONFLICT = "409 for a write"
    THROTTLED = "429 with Retry-After"
    UNAVAILABLE = "503"
    LOST_ANSWER = "done, and the answer is lost"
    SLOW = "slow"

    def refusal(self, *, watches: bool) -> web.Response | None:
        """The answer in place of the API server's; None to pass the request on."""
        match self:
            case Fault.GONE if watches:
                event = json.dumps({"type": "ERROR", "object": _GONE}) + "\n"
                return web.Response(text=event, content_type="application/json")
            case Fault.CONFLICT:
                return _status(409, "Conflict")
            case Fault.THROTTLED:
                return _status(429, "TooManyRequests", {"Retry-After": "1"})
            case Fault.UNAVAILABLE:
                return _status(503, "ServiceUnavailable")
            case _:
                return None


class Faults:
    """Chooses faults. Without a seed it chooses none.

    Fields:
        chosen: how often each was chosen.
    """

    WATCH = (Fault.CUT_STREAM, Fault.GONE, Fault.UNAVAILABLE, Fault.THROTTLED, Fault.SLOW)
    WRITE = (Fault.CONFLICT, Fault.LOST_ANSWER, Fault.UNAVAILABLE, Fault.THROTTLED, Fault.SLOW)
    READ = (Fault.UNAVAILABLE, Fault.THROTTLED, Fault.SLOW)

    def __init__(self, seed: int | None = None, *, share: float = 0.3) -> None:
        self.active = seed is not None
        self.chosen: Counter[Fault] = Counter()
        self._share = share
        self._random = random.Random(seed)  # noqa: S311 - chance, not secrets

    def choose(self, method: str, path: str, *, watches: bool) -> Fault | None:
        """The fault of a request."""
        if not self.active or not path.startswith(("/api/", "/apis/")):
            return None
        # The Lease has tests of its own, and a process that loses it starts again after 15 s.
        share = self._share / 5 if "/leases" in path else self._share
        # Streams are few and long: each is spoilt in the end.
        if self._random.random() > (0.9 if watches else share):
            return None
        # A question about rights is a POST, yet there is nothing for it to conflict with.
        reads = method == "GET" or "accessreviews" in path
        kinds = self.WATCH if watches else self.READ if reads else self.WRITE
        fault = self._random.choice(kinds)
        self.chosen[fault] += 1
        return fault

    def delay_seconds(self) -> float:
        """How long a slow request waits."""
        return self._random.uniform(0.1, 1.5)

    def stream_seconds(self) -> float:
        """How long a stream lives that is cut."""
        return self._random.uniform(0.05, 3)


def _status(code: int, reason: str, headers: dict[str, str] | None = None) -> web.Response:
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "spoilt by the test",
        "reason": reason,
        "code": code,
    }
    return web.json_response(body, status=code, headers=headers)
