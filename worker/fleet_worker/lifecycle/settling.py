"""What a load needs and leaves behind, done while requests run: bytes that are held, and the comparison.

A pause has only copies and checks. Before it, the engine's processes make a staged version's bytes ready.
After it, they let go of them, and compare the model with the one before.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.engine.effect import Effect
from fleet_worker.engine.port import Engine
from fleet_worker.errors import EngineFailure
from fleet_worker.lifecycle.weights import Received, Weights
from fleet_worker.logs import fields
from fleet_worker.protocol import LoadEffect, Phase

if TYPE_CHECKING:
    from fleet_worker.lifecycle.worker import Worker

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


def copies_of(worker: Worker, staged: Weights) -> str | None:
    """Return how a load will copy the bytes of a staged version; None while that is not known."""
    weights, line = worker.made_ready
    return line or None if weights is staged else None


async def make_ready(worker: Worker) -> None:
    """Let the engine's processes hold what is staged, and only that. Without the lock.

    Not while weights change: `settle` comes after that.

    Errors:
        EngineFailure (untouched): See `hold`. A load needs none of it.
    """
    staged = worker.staging.staged
    if worker.phase in (Phase.LOADING, Phase.BROKEN):
        return
    checkpoint = staged.checkpoint if staged is not None and staged.in_memory else None
    try:
        line = await hold(worker.engine, checkpoint, lambda: worker.staging.staged is staged)
    except EngineFailure as failure:
        worker.made_ready = (staged, f"pageable: {failure.message}"[:400])
        raise
    if staged is not None and staged is worker.staging.staged:
        worker.made_ready = (staged, line)


async def make_ready_or_log(worker: Worker) -> None:
    """Make what is staged ready. A failure is logged, and the watch tries again."""
    try:
        await make_ready(worker)
    except EngineFailure as failure:
        worker.unsettled.set()
        _LOG.warning(
            "the engine did not make the staged bytes ready, so the next pause may be longer: %s",
            failure.message,
        )


async def settle(worker: Worker) -> None:
    """Do what the last change of weights has left for later, if requests may run again.

    Errors:
        EngineFailure: Call it again.
    """
    if not _may_settle(worker):
        return
    async with worker.lock:
        if not _may_settle(worker):
            return
        worker.unsettled.clear()
        if worker.uncompared and worker.effect is not None:
            worker.effect = await _compared(worker.engine, worker.effect)
        worker.uncompared = False
    try:
        await make_ready(worker)
    except EngineFailure:
        worker.unsettled.set()
        raise


def _may_settle(worker: Worker) -> bool:
    """Whether weights were changed, and no pause waits for the engine now."""
    is_running = worker.phase in (Phase.SERVING, Phase.JOINING) and not worker.asleep
    return worker.unsettled.is_set() and is_running


def effect_to_compare(loaded: Weights | Received, previous: Weights | Received) -> LoadEffect:
    """Return the effect of a load that is not compared yet."""
    return LoadEffect(
        version=loaded.version,
        run_id=loaded.run_id,
        compared_with=previous.version,
        compared_with_run_id=previous.run_id,
        compared_with_digest=previous.digest,
        unchanged=False,
        compared_elements=0,
        elements=0,
        why_not="the worker compares the weights when the pause has ended",
    )


def effect_never_compared(effect: LoadEffect) -> LoadEffect:
    """Return the effect of a load that can be compared no more."""
    why_not = "the next change of weights came before the comparison"
    return effect.model_copy(update={"why_not": why_not})


async def _compared(engine: Engine, effect: LoadEffect) -> LoadEffect:
    try:
        found = await engine.compare()
    except EngineFailure as failure:
        found = Effect(why_not=f"the comparison failed: {failure.message}"[:500])
    if found.unchanged:
        _LOG.warning(
            "version %s and version %s have the same weights: the load changed no parameter",
            effect.compared_with,
            effect.version,
            extra=fields("weights_unchanged", version=effect.version),
        )
    return effect.model_copy(
        update={
            "changed_share": found.changed_share,
            "unchanged": found.unchanged,
            "compared_elements": found.compared_elements,
            "elements": found.elements,
            "why_not": found.why_not,
        }
    )
