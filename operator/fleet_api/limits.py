"""How much of this process clients may use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from fleet_api.problems import Problem, busy

MOST_BODY_BYTES = 64 * 1024
MOST_CLIENTS = 10_000
"""Addresses whose rate is known. The one that was silent longest is forgotten first."""
BURST_SECONDS = 2.0
"""A client may send the requests of so many seconds at once."""


class Rate:
    """A token bucket for each client address.

    Args:
        per_second: Requests that each address may send on average.
        monotonic: Seconds of a clock that only grows.
    """

    def __init__(self, per_second: float, monotonic: Callable[[], float]) -> None:
        self._per_second = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._monotonic = monotonic
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, address: str) -> None:
        """Count a request. Errors: Problem 429."""
        now = self._monotonic()
        left, at = self._left.pop(address, (self._most, now))
        left = min(self._most, left + (now - at) * self._per_second)
        self._left[address] = (max(0.0, left - 1), now)
        while len(self._left) > MOST_CLIENTS:
            self._left.popitem(last=False)
        if left < 1:
            seconds = max(1, round((1 - left) / self._per_second))
            raise Problem(
                HTTPStatus.TOO_MANY_REQUESTS,
                "TooManyRequests",
                f"this address sends more than {self._per_second:g} requests a second; send fewer, "
                "or raise --requests-per-second",
                headers={"Retry-After": str(seconds)},
            )


class Places:
    """Requests that may be in work at once.

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
        self._on_change = on_change
        self._message = (
            f"{most} {what}; send the request again, or raise {flag} or the number of replicas"
        )
        self._taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place. Errors: Problem 503 if all are taken."""
        if self._taken >= self._most:
            raise busy("Overloaded", self._message)
        self._taken += 1
        self._on_change(self._taken)
        try:
            yield
        finally:
            self._taken -= 1
            self._on_change(self._taken)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of requests."""

    rate: Rate
    places: Places
