"""Timeouts for the engine's calls, so that no call holds the worker's lock forever.

A call of the agent holds the worker's lock while the engine works for it. A fence and the end of a
lease wait for that lock, so everything under it ends in bounded time. A call that timed out may
still take effect later. The engine takes calls in order, so the next call comes after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.effect import Effect
from fleet_worker.engine.port import Engine
from fleet_worker.engine.records import Checksum, EngineAdapter, HeldBytes, Position
from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import EngineInfo, PauseMode

T = TypeVar("T")


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


class TimedEngine:
    """An engine whose calls end in bounded time: with an answer, or with an `EngineFailure`.

    Three calls have their limit elsewhere: a pause that waits for requests (`quiesce.drained`),
    prompts (`canary_prompts`), and pings (`Watch.problem`).
    """

    def __init__(self, engine: Engine, limits: Limits, cuts: Sequence[asyncio.Event]) -> None:
        """Wrap an engine.

        Args:
            engine: The engine that does the work.
            limits: Its timeouts.
            cuts: One is set when the worker is being fenced or drained, or its lease is long over.
        """
        self._engine = engine
        self._limits = limits
        self._cuts = cuts

    @property
    def info(self) -> EngineInfo:
        """See `Engine`."""
        return self._engine.info

    @property
    def is_dead(self) -> bool:
        """See `Engine`."""
        return self._engine.is_dead

    def unfinished(self) -> int:
        """See `Engine`."""
        return self._engine.unfinished()

    def serve_adapter(self, name: str, source: str | None) -> None:
        """See `Engine`."""
        self._engine.serve_adapter(name, source)

    def describe(self) -> dict[str, Any]:
        """See `Engine`."""
        return self._engine.describe()

    # --- limited elsewhere ----------------------------------------------------------------------

    async def ping(self) -> None:
        """See `Engine`."""
        await self._engine.ping()

    async def sample(self, prompt: str, max_tokens: int) -> tuple[list[int], list[int]]:
        """See `Engine`."""
        return await self._engine.sample(prompt, max_tokens)

    async def score(self, tokens: Sequence[int], *, first: int) -> tuple[Position, ...]:
        """See `Engine`."""
        return await self._engine.score(tokens, first=first)

    async def models(self) -> list[dict[str, Any]]:
        """See `Engine`."""
        return await self._engine.models()

    # --- control --------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode, *, keep_cache: bool = False) -> None:
        """See `Engine`."""
        call = self._engine.pause(mode, keep_cache=keep_cache)
        if mode is PauseMode.WAIT:
            await call
        else:
            await self._control("pause", call)

    async def resume(self) -> None:
        """See `Engine`."""
        await self._control("resume", self._engine.resume())

    async def drop_prefixes(self, *, running: bool) -> bool:
        """See `Engine`."""
        return await self._control("drop prefixes", self._engine.drop_prefixes(running=running))

    async def abort(self, request_ids: Sequence[str] | None) -> int:
        """See `Engine`."""
        return await self._control("abort", self._engine.abort(request_ids))

    async def reset_caches(self) -> None:
        """See `Engine`."""
        await self._control("reset caches", self._engine.reset_caches(), touched=True)

    async def set_version(self, version: str) -> None:
        """See `Engine`."""
        await self._control("set the label", self._engine.set_version(version), touched=True)

    async def hold(self, checkpoint: Checkpoint | None) -> HeldBytes:
        """See `Engine`."""
        return await self._control("hold staged bytes", self._engine.hold(checkpoint))

    async def compare(self) -> Effect:
        """See `Engine`."""
        return await self._control("compare the weights", self._engine.compare())

    # --- moving weights -------------------------------------------------------------------------

    async def load(self, checkpoint: Checkpoint) -> float:
        """See `Engine`."""
        return await self._moving("load", self._engine.load(checkpoint), touched=True)

    async def probe(self) -> None:
        """See `Engine`."""
        await self._moving("probe", self._engine.probe(), touched=True)

    async def checksum(self) -> Checksum:
        """See `Engine`."""
        return await self._moving("checksum", self._engine.checksum(), touched=True)

    async def add_adapter(self, adapter: EngineAdapter) -> None:
        """See `Engine`."""
        await self._moving("add an adapter", self._engine.add_adapter(adapter))

    async def remove_adapter(self, adapter: EngineAdapter) -> None:
        """See `Engine`."""
        await self._moving("remove an adapter", self._engine.remove_adapter(adapter))

    async def sleep(self, level: int) -> None:
        """See `Engine`."""
        await self._moving("sleep", self._engine.sleep(level))

    async def wake(self, tags: Sequence[str] | None) -> bool:
        """See `Engine`."""
        return await self._moving("wake", self._engine.wake(tags))

    async def join_transfer(self, info: Mapping[str, Any]) -> str | None:
        """See `Engine`."""
        return await self._moving("join a transfer", self._engine.join_transfer(info))

    async def leave_transfer(self) -> None:
        """See `Engine`."""
        await self._moving("leave a transfer", self._engine.leave_transfer())

    async def begin_transfer(self, *, again: bool = False) -> None:
        """See `Engine`."""
        work = self._engine.begin_transfer(again=again)
        await self._moving("begin a transfer", work, touched=True)

    async def receive(self, info: Mapping[str, Any] | Sequence[Any]) -> None:
        """See `Engine`."""
        await self._moving("receive", self._engine.receive(info), touched=True)

    async def end_transfer(self) -> None:
        """See `Engine`."""
        await self._moving("end a transfer", self._engine.end_transfer(), touched=True)

    async def cancel_transfer(self) -> None:
        """See `Engine`."""
        call = self._engine.cancel_transfer()
        await self._control("cancel a transfer", call, touched=True)

    # --- limits ---------------------------------------------------------------------------------

    async def _control(self, name: str, call: Awaitable[T], *, touched: bool = False) -> T:
        async with _limit(self._limits.control_seconds, name, touched=touched):
            return await call

    async def _moving(self, name: str, call: Awaitable[T], *, touched: bool = False) -> T:
        async with _limit(self._limits.load_seconds, name, touched=touched) as timer:
            shortening = asyncio.ensure_future(self._shorten_on_cut(timer))
            try:
                return await call
            finally:
                shortening.cancel()

    async def _shorten_on_cut(self, timer: asyncio.Timeout) -> None:
        """Shorten the timeout once a fence, a drain or the end of a lease waits for the call."""
        waits = [asyncio.ensure_future(cut.wait()) for cut in self._cuts]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        soon = asyncio.get_running_loop().time() + self._limits.cut_seconds
        with suppress(RuntimeError):  # the call has just ended
            timer.reschedule(min(soon, timer.when() or soon))


@asynccontextmanager
async def _limit(seconds: float, name: str, *, touched: bool) -> AsyncIterator[asyncio.Timeout]:
    time = asyncio.get_running_loop().time
    started = time()
    try:
        async with asyncio.timeout(seconds) as timer:
            yield timer
    except TimeoutError as error:
        waited = time() - started  # a cut has made it shorter
        raise EngineFailure(
            f"the engine did not answer within {waited:.3g} s: {name}", touched=touched
        ) from error
