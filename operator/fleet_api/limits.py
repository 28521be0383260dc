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
LARGE_BODY_BYTES = 16 * 1024 * 1024
"""Limit of a body with names, types and shapes of all tensors of a model, as workers have it."""
CREDENTIALS_OF_ONE_TENANT = 4
"""A namespace has the rate of this number of credentials, however many it uses."""
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
    """Divides places, or bytes, among tenants. A tenant may hold as much as is still free for others.

    So of k tenants that want more than there is, each gets a share of 1/(k + 1), and the rest is the reserve of
    the next one. Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet
    switches", 1998.

    Args:
        limit: The number of all slots.
        on_change: Called with the number of taken slots at each change.
        what: What the slots are for, in messages.
        flag: The flag that sets `limit`, for messages.
        owner: Owner of a share, in messages.
    """

    def __init__(
        self,
        limit: int,
        on_change: Callable[[int], None] = lambda _: None,
        *,
        what: str = "requests are running",
        flag: str = "--concurrent-requests",
        owner: str = "namespace {!r}",
    ) -> None:
        self._owner = owner
        self._limit = limit
        self._on_change = on_change
        self._what = what
        self._remedy = f"send the request again, or raise {flag} or the number of replicas"
        self._free = limit
        self._taken: Counter[str] = Counter()

    @contextmanager
    def slot(self, tenant: str = "", amount: int = 1) -> Iterator[Slot]:
        """Hold slots. Without a tenant only the limit of all counts.

        Errors: Problem 503 if fewer than `amount` are free, or the tenant has its share.
        """
        slot = self.open(tenant)
        if not slot.add(amount):
            raise self._refusal(tenant, amount)
        try:
            yield slot
        finally:
            slot.release()

    def open(self, tenant: str) -> Slot:
        """A holder of no slots yet."""
        return Slot(
            lambda amount: self._fits(tenant, amount), lambda change: self._count(tenant, change)
        )

    def _fits(self, tenant: str, amount: int) -> bool:
        return (self._taken[tenant] if tenant else 0) + amount <= self._free

    def _refusal(self, tenant: str, amount: int) -> Problem:
        if amount > self._free:
            return busy(
                "Overloaded",
                f"of {self._limit} {self._free} are free: {self._what}; {self._remedy}",
            )
        return busy(
            "NamespaceOverloaded",
            f"{self._taken[tenant]} of {self._limit} {self._what} for {self._owner.format(tenant)}, which is its "
            f"share; {self._remedy}",
        )

    def _count(self, tenant: str, change: int) -> None:
        self._free -= change
        self._taken[tenant] += change
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._on_change(self._limit - self._free)


class Slot:
    """The slots of one request."""

    def __init__(self, fits: Callable[[int], bool], count: Callable[[int], None]) -> None:
        self._fits = fits
        self._count = count
        self._amount = 0

    def add(self, amount: int) -> bool:
        """Take more. Returns: whether they fit into the share."""
        if not self._fits(amount):
            return False
        self._amount += amount
        self._count(amount)
        return True

    def keep(self, amount: int) -> None:
        """Free all slots beyond this number."""
        if freed := max(0, self._amount - amount):
            self._amount -= freed
            self._count(-freed)

    def release(self) -> None:
        """Free all slots, also before the request ends; a second time changes nothing."""
        self.keep(0)


SLOT = web.RequestKey("slot", Slot)
"""The slot of a request: of one that arrives, and then of one that runs."""


class Waits:
    """Requests that wait for minutes. They have slots of their own, and hold none of the others."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    @contextmanager
    def of(self, request: web.Request, namespace: str) -> Iterator[None]:
        """Hold a slot for a request that waits for a fleet of this namespace. Errors: Problem 503."""
        with self._slots.slot(namespace):
            request[SLOT].release()
            yield


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one kind of requests.

    Fields:
        rate: requests of each credential.
        tenants: requests to the fleets of each namespace.
        slots: requests that run, by namespace.
    """

    rate: Rate
    tenants: Rate
    slots: Slots


LIMITS = web.RequestKey("limits", Limits)
"""The limits of the kind of a request."""
