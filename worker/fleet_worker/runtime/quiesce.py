"""Bringing an engine to rest: draining with a deadline, and ending everything."""

from __future__ import annotations

import asyncio
import logging
import time

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import PauseMode
from fleet_worker.runtime.ports import Clock, Engine

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.02


class Quiescence:
    """Counts the data requests that are inside, and ends them.

    A request that passed the latch just before it closed may reach the engine after it was
    emptied (its prompt was being tokenized); so the engine is emptied until nothing is left.
    """

    def __init__(self) -> None:
        self.inside = 0
        """Data requests between the latch and the end of their reply."""
        self.outlived = False
        """Requests that end now have outlived a drain."""

    async def reach(self, engine: Engine) -> None:
        """Pause the engine with no request left, each ended with the tokens it has.

        Replies that a slow client does not read are waited for 5 s, then left to it.

        Errors:
            EngineFailure: the engine failed, or does not let go of its requests.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            await engine.pause(PauseMode.ABORT)
            if self.inside == 0 and engine.unfinished() == 0:
                return
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        if engine.unfinished() > 0:
            raise EngineFailure("the engine does not end its requests", touched=False)
        _LOG.info("%d replies are still being read by their clients", self.inside)

    async def settle(self, deadline_seconds: float, *, cut: asyncio.Event) -> bool:
        """Wait until all data requests inside have ended by themselves; whether they have.

        Args:
            deadline_seconds: How long to wait.
            cut: Ends the waiting early.
        """
        deadline = time.monotonic() + deadline_seconds
        while self.inside > 0 and time.monotonic() < deadline and not cut.is_set():  # noqa: ASYNC110 - counted by the gate, which signals nothing
            await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        return self.inside == 0


async def drained(
    engine: Engine,
    deadline_seconds: float,
    *,
    cut: asyncio.Event,
    clock: Clock,
    keep_cache: bool = False,
) -> bool:
    """Pause once running requests have finished; freeze what still runs at the deadline.

    The engine's own `wait` has no deadline and stays armed; a `keep` takes over from it.

    Args:
        engine: What to pause.
        deadline_seconds: How long to wait.
        cut: Ends the waiting early.
        clock: Monotonic seconds.
        keep_cache: Leave what was computed.

    Returns:
        Whether everything had finished.
    """
    started = clock()
    waiting = asyncio.ensure_future(engine.pause(PauseMode.WAIT, keep_cache=keep_cache))
    cutting = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait(
            {waiting, cutting}, timeout=deadline_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            waiting.result()
            return True
        _LOG.info("still draining after %.1f s; holding the rest", clock() - started)
        await engine.pause(PauseMode.KEEP, keep_cache=keep_cache)
        await asyncio.wait({waiting}, timeout=_PATIENCE_SECONDS)  # it ends with the engine at rest
        if waiting.done():
            waiting.result()
        return False
    finally:
        cutting.cancel()
        waiting.cancel()
