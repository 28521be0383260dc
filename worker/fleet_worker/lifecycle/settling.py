"""Work for a load that is done while requests run: bytes that are held, and the comparison.

A pause has only copies and checks. Before it, the engine's processes make a staged version's bytes ready.
After it, they let go of them, and compare the model with the one before.
"""

from __future__ import annotations

import logging

from fleet_worker.errors import EngineFailure
from fleet_worker.lifecycle.in_place import base_in_place
from fleet_worker.lifecycle.load_effects import compared
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.protocol import Phase

_LOG = logging.getLogger(__name__)


def copies_of(worker: Worker, staged: Weights) -> str | None:
    """Return how a load will copy the bytes of a staged version; None while that is not known."""
    weights, line = worker.made_ready
    return line or None if weights is staged else None


async def make_ready(worker: Worker) -> None:
    """Let the engine's processes hold what is staged, and only that. Without the lock.

    Not while weights change: `settle` comes after that.

    Errors:
        EngineFailure (untouched): See `HeldByEngine.hold`. A load needs none of it.
    """
    staged = worker.staging.staged
    checkpoint = staged.checkpoint if staged is not None and staged.in_memory else None

    # A sleeping engine has no weights to sample or to compare.
    reads_model = checkpoint is not None and not worker.asleep

    def is_wanted() -> bool:
        may_read = not (reads_model and worker.asleep)
        return worker.staging.staged is staged and not worker.changes and may_read

    base = None
    if staged is not None and reads_model:
        base = base_in_place(worker, staged).checkpoint
    held = worker.held_by_engine
    room = worker.memory_left() + held.changes_bytes if base is not None else 0
    try:
        line = await held.hold(checkpoint, is_wanted, base, room, samples=reads_model)
    except EngineFailure as failure:
        worker.made_ready = (staged, f"pageable: {failure.message}"[:400])
        raise
    if line and staged is worker.staging.staged:
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
            worker.effect = await compared(worker.engine, worker.effect)
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
