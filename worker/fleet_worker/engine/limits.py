"""Timeouts for the engine's calls, so that no call holds the worker's lock forever.

A call of the agent holds the worker's lock while the engine works for it. A fence and the end of a
lease wait for that lock, so everything under it ends in bounded time. A call that timed out may
still take effect later. The engine takes calls in order, so the next call comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from fleet_worker.engine.port import LIMITS, Engine, Limit
from fleet_worker.errors import EngineFailure


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts, in seconds.

    Fields:
        control_seconds: for calls that the engine answers between two of its steps.
        load_seconds: for calls that move weights.
        cut_seconds: for the rest of a call that moves weights, once a fence or a drain has begun, or
            once the lease has been over for `overdue_seconds`.
        overdue_seconds: how long a call that moves weights may outlive its lease. A leader that
            takes over within 130 s renews the lease, and the load continues.
        files_seconds: for a check of files while a call holds the lock.
    """

    control_seconds: float = 30.0
    load_seconds: float = 1800.0
    cut_seconds: float = 60.0
    overdue_seconds: float = 120.0
    files_seconds: float = 1.0


def timed(engine: Engine, limits: Limits, cuts: Sequence[asyncio.Event]) -> Engine:
    """Return the engine, whose calls end in bounded time: with an answer, or with an `EngineFailure`.

    `cuts`: one is set when the worker is being fenced or drained, or its lease is long over.
    """
    return cast("Engine", _Timed(engine, limits, cuts))


class _Timed:
    """See `timed`."""

    def __init__(self, engine: Engine, limits: Limits, cuts: Sequence[asyncio.Event]) -> None:
        self._engine = engine
        self._limits = limits
        self._cuts = cuts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        limit = LIMITS.get(name)
        return found if limit is None else partial(self._bounded, name, limit, found)

    async def _bounded(
        self,
        name: str,
        limit: Limit,
        call: Callable[..., Awaitable[Any]],
        *arguments: Any,
        **named: Any,
    ) -> Any:
        limits = self._limits
        seconds = limits.load_seconds if limit.moves_weights else limits.control_seconds
        time = asyncio.get_running_loop().time
        started = time()
        try:
            async with asyncio.timeout(seconds) as timer:
                with self._shortened(timer) if limit.moves_weights else nullcontext():
                    return await call(*arguments, **named)
        except TimeoutError as error:
            waited = time() - started  # a cut has made it shorter
            shown = name.replace("_", " ")
            raise EngineFailure(
                f"the engine did not answer within {waited:.3g} s: {shown}", touched=limit.touched
            ) from error

    @contextmanager
    def _shortened(self, timer: asyncio.Timeout) -> Iterator[None]:
        """Shorten the timeout once a fence, a drain or the end of a lease waits for the call."""
        shortening = asyncio.ensure_future(self._shorten_on_cut(timer))
        try:
            yield
        finally:
            shortening.cancel()

    async def _shorten_on_cut(self, timer: asyncio.Timeout) -> None:
        waits = [asyncio.ensure_future(cut.wait()) for cut in self._cuts]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        soon = asyncio.get_running_loop().time() + self._limits.cut_seconds
        with suppress(RuntimeError):  # the call has just ended
            timer.reschedule(min(soon, timer.when() or soon))
