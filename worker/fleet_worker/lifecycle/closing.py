"""Closing a worker: its latch shut, its engine paused and without requests."""

from __future__ import annotations

import logging

from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lifecycle.states import Event, after
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import PauseMode, Phase, Reason

_LOG = logging.getLogger(__name__)


async def quiesce(worker: Worker, event: Event) -> None:
    """Close the latch, end all requests, then take the step of `event`.

    If the requests do not end, the worker is closed and not idle (`note_not_idle`).

    Errors:
        Refusal: The step does not fit. The latch is closed; nothing else has changed.
        EngineFailure: The engine still has requests.
    """
    worker.close_latch()  # again, because an admission may have opened it meanwhile
    after(worker.lifecycle, event)
    try:
        with worker.working("fence"):
            await worker.quiescence.reach(worker.engine)
    except BaseException:
        note_not_idle(worker)
        raise
    finally:
        worker.cut.clear()
        worker.lease = None
    worker.kept.clear()
    worker.enter(event)


def note_not_idle(worker: Worker) -> None:
    """Record that the engine may still have requests behind the closed latch.

    The watch tries again to end them, and ends the process if they do not end.
    """
    if worker.phase is Phase.DRAINING:
        return
    worker.enter(Event.NOT_IDLE)
    if worker.not_idle_since is None:
        worker.not_idle_since = worker.clock()
        _LOG.error(
            "the latch is closed, but the engine may still have requests; the worker tries again"
            " to end them",
            extra=fields("not_idle", unfinished=worker.engine.unfinished()),
        )


async def end_requests(worker: Worker) -> None:
    """End the requests that a closed worker still has. Under the lock.

    Errors:
        Refusal: `WrongPhase`; the engine still has requests.
    """
    try:
        await quiesce(worker, Event.FENCE)
    except EngineFailure as failure:
        raise Refusal(
            Reason.WRONG_PHASE,
            f"the worker cannot end the requests behind its closed latch ({failure.message}). It"
            " tries again, and ends its process if that does not succeed",
        ) from failure


async def silence(worker: Worker) -> None:
    """End the requests of a joining worker, or see to it that a paused one is. Under the lock.

    Errors: see `end_requests` and `ensure_paused`.
    """
    await (end_requests(worker) if worker.phase is Phase.JOINING else ensure_paused(worker))


async def undo_resume(worker: Worker, *, closed: bool) -> None:
    """Stop an engine that may generate, since only the answer of its resume may be lost. Under the lock.

    `closed`: the latch was closed before the resume. Then the watch ends the requests.
    """
    if closed:
        note_not_idle(worker)
    else:
        await ensure_paused(worker, after_resume=True)


async def ensure_paused(worker: Worker, *, after_resume: bool = False) -> None:
    """Pause the engine of a paused worker again if it is not paused, in the mode of its pause. Under the lock.

    Called before weights change. vLLM's pause takes 20 ms also if the engine is paused.

    Args:
        worker: The worker.
        after_resume: A resume failed midway, and may still come to the engine. So it is paused in any case.

    Errors:
        EngineFailure: The engine failed; the worker is closed and not idle.
    """
    lease = worker.lease
    aborts = lease is not None and lease.mode is PauseMode.ABORT
    try:
        if not after_resume and await worker.engine.is_paused():
            return
        await worker.engine.pause(
            PauseMode.ABORT if aborts else PauseMode.KEEP,
            keep_cache=lease is not None and lease.cache_kept,
        )
    except BaseException:
        worker.close_latch()
        worker.lease = None
        note_not_idle(worker)
        raise
