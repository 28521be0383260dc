"""The bytes that the engine's processes hold for the next load, as the worker asks for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.port import Engine
from fleet_worker.errors import EngineFailure

_LOG = logging.getLogger(__name__)
_AGAIN_SECONDS = 0.05
_HOLD_SECONDS = 300.0
"""To register memory takes about 0.3 s per GB, to unmap it less."""


async def hold(engine: Engine, checkpoint: Checkpoint | None, is_wanted: Callable[[], bool]) -> str:
    """Let the engine's processes hold a checkpoint, or nothing, and wait until they do.

    Args:
        engine: The engine.
        checkpoint: Its bytes are in memory.
        is_wanted: Asked before each call.

    Returns:
        How a load will copy the bytes (`HeldBytes.line`); empty once it is not wanted any more.

    Errors:
        EngineFailure (untouched): Some process may hold something else.
    """
    try:
        async with asyncio.timeout(_HOLD_SECONDS):
            while is_wanted():
                held = await engine.hold(checkpoint)
                if held.is_done:
                    return held.line
                await asyncio.sleep(_AGAIN_SECONDS)
    except TimeoutError as error:
        message = f"the engine's processes still map staged bytes after {_HOLD_SECONDS:.0f} s"
        raise EngineFailure(message, touched=False) from error
    return ""


async def let_go(engine: Engine, is_wanted: Callable[[], bool]) -> None:
    """Let the engine's processes unmap all they hold: its memory is not free before that."""
    try:
        await hold(engine, None, is_wanted)
    except EngineFailure as failure:
        _LOG.warning("memory of an earlier version may not be free: %s", failure.message)
