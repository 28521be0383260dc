"""How much of this process clients may use."""

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
"""Addresses whose rate is known. The one that was silent longest is forgotten first."""
BURST_SECONDS = 2.0
"""A client may send the requests of so many seconds at once."""


class Rate:
    """A token bucket for each client address.

    Args:
        per_second: Requests that each address may send on average.
        monotonic: Seconds of a clock that only grows.
        what: In messages.
        flag: That sets the number.
    """

    def __init__(
        self,
        per_second: float,
        monotonic: Callable[[], float],
        *,
        what: str = "requests",
        flag: str = "--requests-per-second",
    ) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._monotonic = monotonic
        self._message = f"this address sends more than {per_second:g} {what} a second; send fewer, or raise {flag}"
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> None:
        """Count a request. Errors: Problem 429."""
        self._require(self.count(address))

    def count(self, address: str) -> float:
        """Count what the address has done already. Returns: how many it might have done before."""
        left = self._left_of(address)
        self._left.pop(address, None)
        self._left[address] = (max(0.0, left - 1), self._monotonic())
        while len(self._left) > MAX_CLIENTS:
            self._left.popitem(last=False)
        return left

    def check(self, address: str) -> None:
        """Return if the address may do one more. Errors: Problem 429."""
        self._require(self._left_of(address))

    def _left_of(self, address: str) -> float:
        now = self._monotonic()
        left, at = self._left.get(address, (self._most, now))
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


class Places:
    """Requests that may be in work at once. Of one caller, if it is named, at most half of them.

    Args:
        most: How many.
        on_change: Called with their number at each change.
        what: In messages.
        flag: That sets the number.
    """

    def __init__(
        self,
        most: int,
        on_change: Callable[[int], None] = lambda _: None,
        *,
        what: str = "requests are in work",
        flag: str = "--concurrent-requests",
    ) -> None:
        self._most = most
        self._most_of_one = max(1, most // 2)
        self._on_change = on_change
        self._what = what
        self._remedy = f"send the request again, or raise {flag} or the number of replicas"
        self._taken: Counter[str] = Counter()

    @contextmanager
    def one(self, caller: str = "") -> Iterator[Place]:
        """Hold a place. Errors: Problem 503 if all are taken, or the caller has its share."""
        if self._taken.total() >= self._most:
            raise busy("Overloaded", f"{self._most} {self._what}; {self._remedy}")
        if caller and self._taken[caller] >= self._most_of_one:
            raise busy(
                "CallerOverloaded",
                f"{self._most_of_one} {self._what} for {caller}, which is the share of one caller; "
                f"{self._remedy}",
            )
        self._count(caller, 1)
        place = Place(lambda: self._count(caller, -1))
        try:
            yield place
        finally:
            place.leave()

    def _count(self, caller: str, change: int) -> None:
        self._taken[caller] += change
        if not self._taken[caller]:
            del self._taken[caller]
        self._on_change(self._taken.total())


class Place:
    """A place of one request. `on_leave`: called once."""

    def __init__(self, on_leave: Callable[[], None]) -> None:
        self._on_leave: Callable[[], None] | None = on_leave

    def leave(self) -> None:
        """Make room before the request ends; a second time changes nothing."""
        if self._on_leave is not None:
            self._on_leave()
        self._on_leave = None


PLACE = web.RequestKey("place", Place)
"""The place of a request among all that are in work."""


class Waits:
    """Requests that wait for minutes. They have places of their own, and hold none of the others."""

    def __init__(self, places: Places) -> None:
        self._places = places

    @contextmanager
    def of(self, request: web.Request, caller: str) -> Iterator[None]:
        """Hold a place for a request that waits. Errors: Problem 503."""
        with self._places.one(caller):
            request[PLACE].leave()
            yield


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of requests."""

    rate: Rate
    places: Places
