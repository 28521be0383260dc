"""Limits of the load that clients put on this process."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from aiohttp import web

from fleet_api.problems import Problem, busy

MAX_BODY_BYTES = 64 * 1024
MAX_CLIENTS = 10_000
"""Largest number of clients whose rate is known. The one that was silent longest is forgotten first."""
BURST_SECONDS = 2.0
"""A client may send the requests of this time at once."""


class Rate:
    """A token bucket for each client.

    Args:
        per_second: Events that each client may cause on average.
        monotonic: Seconds of a clock that only grows.
        subject: The sender of these events, in messages.
        what: Name of these events in messages.
        flag: The flag that sets `per_second`, for messages.
    """

    def __init__(
        self,
        per_second: float,
        monotonic: Callable[[], float],
        *,
        subject: str = "credential",
        what: str = "requests",
        flag: str = "--requests-per-second",
    ) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._monotonic = monotonic
        self._message = f"this {subject} sends more than {per_second:g} {what} a second; send fewer, or raise {flag}"
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str) -> None:
        """Count a request. Errors: Problem 429."""
        self._require(self.count(client))

    def count(self, client: str) -> float:
        """Count an event, even beyond the limit. Returns: how many the client had left before."""
        left = self._left_of(client)
        self._left.pop(client, None)
        self._left[client] = (max(0.0, left - 1), self._monotonic())
        while len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return left

    def check(self, client: str) -> None:
        """Check that the client may cause one more event. Errors: Problem 429."""
        self._require(self._left_of(client))

    def _left_of(self, client: str) -> float:
        now = self._monotonic()
        left, at = self._left.get(client, (self._most, now))
        return min(self._most, left + (now - at) * self._per_second)

    def _require(self, left: float) -> None:
        if left < 1:
            seconds = max(1, round((1 - left) / self._per_second))
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TooManyRequests",
                self._message,
                headers={"Retry-After": str(seconds)},
            )


class Slots:
    """Limits how many requests run at once. A named caller gets at most half of the slots.

    Args:
        limit: The number of slots.
        on_change: Called with the number of taken slots at each change.
        what: What the slots are for, in messages.
        flag: The flag that sets `limit`, for messages.
    """

    def __init__(
        self,
        limit: int,
        on_change: Callable[[int], None] = lambda _: None,
        *,
        what: str = "requests are running",
        flag: str = "--concurrent-requests",
    ) -> None:
        self._limit = limit
        self._limit_of_one = max(1, limit // 2)
        self._on_change = on_change
        self._what = what
        self._remedy = f"send the request again, or raise {flag} or the number of replicas"
        self._taken: Counter[str] = Counter()

    @contextmanager
    def slot(self, caller: str = "") -> Iterator[Slot]:
        """Hold a slot. Errors: Problem 503 if all are taken, or the caller has its share."""
        if self._taken.total() >= self._limit:
            raise busy("Overloaded", f"{self._limit} {self._what}; {self._remedy}")
        if caller and self._taken[caller] >= self._limit_of_one:
            raise busy(
                "CallerOverloaded",
                f"{self._limit_of_one} {self._what} for {caller}, which is the share of one caller; "
                f"{self._remedy}",
            )
        self._count(caller, 1)
        slot = Slot(lambda: self._count(caller, -1))
        try:
            yield slot
        finally:
            slot.release()

    def _count(self, caller: str, change: int) -> None:
        self._taken[caller] += change
        if not self._taken[caller]:
            del self._taken[caller]
        self._on_change(self._taken.total())


class Slot:
    """The slot of one request. `on_release`: called once."""

    def __init__(self, on_release: Callable[[], None]) -> None:
        self._on_release: Callable[[], None] | None = on_release

    def release(self) -> None:
        """Free the slot, also before the request ends; a second time changes nothing."""
        if self._on_release is not None:
            self._on_release()
        self._on_release = None


SLOT = web.RequestKey("slot", Slot)
"""The slot of a running request."""
RATE = web.RequestKey("rate", Rate)
"""The rate of requests of the kind of a request, by credential."""


class Waits:
    """Requests that wait for minutes. They have slots of their own, and hold none of the others."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @contextmanager
    def of(self, request: web.Request, caller: str) -> Iterator[None]:
        """Hold a slot for a request that waits. Errors: Problem 503."""
        with self._slots.slot(caller):
            request[SLOT].release()
            yield


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of requests."""

    rate: Rate
    slots: Slots
