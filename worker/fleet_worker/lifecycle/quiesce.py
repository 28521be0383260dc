"""Making an engine idle: draining with a timeout, and ending all requests."""

from __future__ import annotations

import asyncio
import logging
import time

from fleet_worker.engine.port import Clock, Engine
from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import PauseMode

_LOG = logging.getLogger(__name__)
_PATIENCE_SECONDS = 5.0
_POLL_SECONDS = 0.02


class Quiescence:
    """Counts the requests for the model that are inside the worker, and ends them.

    A request that passed the latch just before it closed may still be in the tokenizer, and reach
    the engine later. So the engine's requests are ended until no request is inside.
    """

    def __init__(self) -> None:
        self.inside = 0
        """Requests between the latch and the end of their reply."""
        self.drain_timed_out = False
        """Whether requests that end now were still running at the end of a drain."""

    async def reach(self, engine: Engine) -> None:
        """Pause the engine and end all requests with the tokens they have.

        Waits up to 5 s for clients that read their replies slowly.

        Errors:
            EngineFailure: The engine failed, or still has requests after 5 s.
        """
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            await engine.pause(PauseMode.ABORT)
            if self.inside == 0 and engine.unfinished() == 0:
                return
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(_POLL_SECONDS)
        if engine.unfinished() > 0:
            raise EngineFailure("the engine does not end its requests", touched=False)
        _LOG.info("replies that clients are still reading: %d", self.inside)

    async def wait_until_empty(self, deadline_seconds: float, *, cut: asyncio.Event) -> bool:
        """Wait until all requests inside have finished, or until `cut`; returns whether they have."""
        deadline = time.monotonic() + deadline_seconds
        while self.inside > 0 and time.monotonic() < deadline and not cut.is_set():  # noqa: ASYNC110 - the gate counts and has no event
            await asyncio.sleep(_POLL_SECONDS)
        return self.inside == 0


async def drained(
    engine: Engine,
    deadline_seconds: float,
    *,
    cut: asyncio.Event,
    clock: Clock,
    keep_cache: bool = False,
) -> bool:
    """Pause once running requests have finished; hold the rest after the timeout.

    The engine's own `wait` has no timeout; a later `keep` takes over from it.

    `cut`: ends the wait early.

    Returns:
        Whether all requests had finished.
    """
    started = clock()
    waiting = asyncio.ensure_future(engine.drain(keep_cache=keep_cache))
    cutting = asyncio.ensure_future(cut.wait())
    try:
        await asyncio.wait(
            {waiting, cutting}, timeout=deadline_seconds, return_when=asyncio.FIRST_COMPLETED
        )
        if waiting.done():
            waiting.result()
            return True
        _LOG.info(
            "requests still run %.1f s after the pause began; the worker holds them",
            clock() - started,
        )
        await engine.pause(PauseMode.KEEP, keep_cache=keep_cache)
        await asyncio.wait({waiting}, timeout=_PATIENCE_SECONDS)  # ends once the engine is paused
        if waiting.done():
            waiting.result()
        return False
    finally:
        cutting.cancel()
        waiting.cancel()
