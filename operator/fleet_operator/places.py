"""Limits how many requests a server gets at once. Tenants share the places in turns, and the time of the server."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet_operator.time_shares import TimeShares
from fleet_operator.turns import Turns

SECONDS_EACH_SECOND = 4.0
"""Time of requests that tenants share (`time_shares`). Next to others that use little, one gets that of two at once."""
SLOW_SECONDS = 0.1
SLOW_AT_ONCE = 2
SLOW_ALONE = 4
"""Requests at once of a tenant whose requests take longer than that on the average: next to others, and while no
other one asks. More would still run when another one comes. A write to an object of 1 MB takes a core of the API
server for 0.3 s."""
FEW = 4
"""A tenant with no more requests than that, running or waiting, waits for no time. A rollout has so few: its share
next to many busy tenants would hold it back for seconds, and the server has room for it."""
NEWEST = 0.25
"""Weight of the last request in the average."""
MAX_TENANTS = 1024
"""Tenants whose average is remembered."""


class Places:
    """Places of requests. Those that wait for one take turns by their tenant (`turns`).

    A tenant has few slow requests at once. While others use the server, too, it waits also for its share of the
    time, unless it has few requests. Those without a tenant wait for a place only.
    """

    def __init__(self, most: int) -> None:
        self._turns: Turns[tuple[tuple[str, str], asyncio.Future[float]]] = Turns(most)
        self._running: Counter[str] = Counter()
        self._asking: Counter[str] = Counter()
        """Requests that run or wait, by tenant."""
        self._shares = TimeShares()
        self._noted_at = 0.0
        self._average: OrderedDict[str, float] = OrderedDict()
        """Seconds of a request, by tenant. One without an entry counts as slow."""
        self._timer: asyncio.TimerHandle | None = None

    @asynccontextmanager
    async def of(self, tenant: str, part: str = "") -> AsyncIterator[None]:
        """Hold a place for a request of a tenant, once its turn has come. Parts of a tenant share its turns."""
        path = (tenant, part)
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        """Its result is when the request begins."""
        self._turns.add(path, (path, turn))
        self._asking[tenant] += 1
        self._go_on()
        try:
            await turn
            yield
        finally:
            self._asking[tenant] -= 1
            if not self._asking[tenant]:
                del self._asking[tenant]
            # A request that was cancelled while it waited has no place, unless it got one just then.
            if not turn.cancelled():
                self._end(tenant, turn.result())
                self._turns.leave(path)
                self._go_on()

    def _end(self, tenant: str, begun: float) -> None:
        now = self._note()
        self._running[tenant] -= 1
        if not self._running[tenant]:
            del self._running[tenant]
        lasted = now - begun
        before = self._average.pop(tenant, lasted)
        self._average[tenant] = before + NEWEST * (lasted - before)
        while len(self._average) > MAX_TENANTS:
            self._average.popitem(last=False)

    def _go_on(self) -> None:
        """Give the free places to those whose turn it is. A cancelled one leaves its place to the next."""
        now = self._note()
        while (waiting := self._turns.take(lambda t: self._may(t, now))) is not None:
            path, turn = waiting
            if turn.done():
                self._turns.leave(path)
            else:
                self._running[path[0]] += 1
                turn.set_result(now)
        held_back = (self._shares.wait_seconds(tenant, now) for tenant in self._turns.tenants())
        soonest = min(filter(None, held_back), default=0.0)
        if soonest and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(soonest, self._look_again)

    def _look_again(self) -> None:
        self._timer = None
        self._go_on()

    def _note(self) -> float:
        """Note the time that the running requests have taken. Returns: now."""
        now = asyncio.get_running_loop().time()
        seconds = (now - self._noted_at) / SECONDS_EACH_SECOND
        for tenant, number in self._running.items():
            if tenant and seconds:
                self._shares.note(tenant, number * seconds, now)
        self._noted_at = now
        return now

    def _may(self, tenant: str, now: float) -> bool:
        if not tenant:
            return True
        slow = SLOW_AT_ONCE if self._shares.is_shared(tenant, now) else SLOW_ALONE
        is_slow = self._average.get(tenant, SLOW_SECONDS) >= SLOW_SECONDS
        if is_slow and self._running[tenant] >= slow:
            return False
        return self._asking[tenant] <= FEW or not self._shares.wait_seconds(tenant, now)
