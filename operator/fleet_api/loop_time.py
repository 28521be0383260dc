"""The time of the event loop that the requests to each namespace's fleets take.

All requests run in one loop, and what its tenants store decides how long an answer of the API server takes to read:
a page of pods takes 30 ms. So the time is measured, and a namespace that has used up its share is refused for a
moment, with the rule of the operator (`time_shares`). Requests that are passed on do not count, and are not refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

from fleet_api.pace import Pace
from fleet_api.problems import busy
from fleet_operator.measured import Measured
from fleet_operator.time_shares import TimeShares

T = TypeVar("T")


class LoopTime:
    """The shares of the namespaces. `monotonic`: seconds of a clock that only grows."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._shares = TimeShares()
        self.pace = Pace()
        self._monotonic = monotonic

    def note(self, tenant: str, seconds: float) -> None:
        """Note time that a tenant has used."""
        self._shares.note(tenant, seconds, self._monotonic())

    def wait_seconds(self, tenant: str) -> float:
        """The time until a tenant may use more; 0 if it may now."""
        return self._shares.wait_seconds(tenant, self._monotonic())

    async def share(self, tenant: str, work: Coroutine[Any, Any, T]) -> T:
        """The result of a tenant's work. Errors: those of the work; Problem 503 if it has used up its share."""
        if seconds := self.wait_seconds(tenant):
            work.close()
            raise busy(
                "NamespaceOverloaded",
                f"requests to fleets of namespace {tenant!r} have used its share of the processor; send fewer, make "
                "its objects smaller, or raise the number of replicas",
                seconds,
            )
        token = _SHARE.set((self, tenant))
        try:
            return await measured(work)
        finally:
            _SHARE.reset(token)


_SHARE: ContextVar[tuple[LoopTime, str] | None] = ContextVar("share", default=None)
"""That of the tenant whose request this is; None before that is known."""


def measured(work: Coroutine[Any, Any, T]) -> Awaitable[T]:
    """Work whose time counts for the tenant of the request, also in a task of its own."""
    if (share := _SHARE.get()) is None:
        return work
    loop_time, tenant = share
    return Measured(work, partial(loop_time.note, tenant))


async def turn() -> None:
    """Wait until the tenant of the request may use more time."""
    if (share := _SHARE.get()) is not None:
        loop_time, tenant = share
        if seconds := loop_time.wait_seconds(tenant):
            await asyncio.sleep(seconds)


async def paced() -> None:
    """Wait while other requests that may go on at the same moment have their turns (`pace`)."""
    if (share := _SHARE.get()) is not None:
        loop_time, tenant = share
        await loop_time.pace.turn(tenant)
