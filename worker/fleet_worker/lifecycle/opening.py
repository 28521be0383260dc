"""Opening the latch: a worker serves the weights that its caller has named."""

from __future__ import annotations

import logging

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import closing, pausing
from fleet_worker.lifecycle.states import Event, after
from fleet_worker.lifecycle.weights import description_of, is_named_by
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import OpenRequest, Phase, Reason

_LOG = logging.getLogger(__name__)


async def open_latch(worker: Worker, request: OpenRequest, event: Event) -> None:
    """Resume or admit a worker, if its engine has the version of the request. Under the lock.

    Errors:
        Refusal: `VersionMismatch`, or `WrongPhase`.
        EngineFailure: See `pausing.resume_engine`.
    """
    worker.check_step(event)
    if worker.version is None or not is_named_by(worker.good, request):
        loaded = description_of(worker.good) if worker.version is not None else "no version"
        raise Refusal(
            Reason.VERSION_MISMATCH,
            f"the engine has {loaded}, not {description_of(request)}; load that first",
        )
    if worker.phase is Phase.SERVING and worker.is_open:
        return
    if worker.phase is Phase.SERVING:
        raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
    if worker.phase is Phase.JOINING and not worker.is_at_rest:
        await closing.end_requests(worker)
    await resume(worker, request.version, event)
    log_serving(worker)


async def resume(worker: Worker, version: str, event: Event) -> None:
    """Let the engine generate, and open the latch by the step of `event`. Under the lock.

    Errors:
        Refusal: `WrongPhase`; a fence has closed the latch.
        EngineFailure: See `pausing.resume_engine`.
    """
    if not after(worker.standing, event).admitted:
        raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
    started = worker.clock()
    with worker.working("resume", version):
        await pausing.resume_engine(worker)
    worker.enter(event)
    worker.note_opened(version, started)


def log_serving(worker: Worker) -> None:
    """Log which weights a worker serves now."""
    good = worker.good
    _LOG.info(
        "serving %s",
        description_of(good),
        extra=fields("serving", version=good.version, run_id=good.run_id, digest=good.digest),
    )
