"""Pausing a worker under a lease, resuming it and opening its latch, and the end of an expired lease."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from fleet_worker.errors import Refusal
from fleet_worker.lifecycle import authority, closing, sleeping
from fleet_worker.lifecycle.quiesce import drained
from fleet_worker.lifecycle.states import Event, after
from fleet_worker.lifecycle.weights import description_of, is_named_by
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.logs import fields
from fleet_worker.protocol import OpenRequest, PauseMode, PauseRequest, Phase, Reason, SwapTimings

_LOG = logging.getLogger(__name__)


def renew(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> bool:
    """Renew the lease of a pause, if the request asks for no stronger pause.

    Also during a load, which may last longer than the lease. Returns whether it was renewed.
    """
    lease = worker.lease
    if lease is None or worker.phase not in (Phase.PAUSED, Phase.LOADING):
        return False
    if lease.holder != request.holder:
        return False  # the lease has expired, and another holder takes over
    stronger = request.mode is PauseMode.ABORT and lease.mode is not PauseMode.ABORT
    stronger |= lease.cache_kept and not keep_cache
    if stronger and worker.phase is Phase.PAUSED:
        return False
    worker.lease = lease.renewed(worker.clock(), request.lease_seconds)
    worker.changed.set()
    return True


async def strengthen(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> None:
    """Turn a pause that holds requests or the KV cache into one that does not."""
    aborted = worker.lease is not None and worker.lease.mode is PauseMode.ABORT
    mode = PauseMode.ABORT if aborted or request.mode is PauseMode.ABORT else PauseMode.KEEP
    with worker.working("pause"):
        await worker.engine.pause(mode, keep_cache=keep_cache)
    since = worker.lease.since if worker.lease is not None else worker.clock()
    _start_lease(worker, request, mode, since=since, timed_out=False, keep_cache=keep_cache)


async def stop(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> None:
    """Pause a serving worker. `keep_cache`: later weights may read the KV cache."""
    worker.enter(Event.PAUSE)
    started = worker.clock()
    with worker.working("pause"):
        timed_out = await _stop_generating(worker, request, keep_cache=keep_cache)
    worker.lease = None
    worker.enter(Event.PAUSED)
    if worker.phase is not Phase.PAUSED:
        return  # a fence takes over from here
    mode = PauseMode.KEEP if timed_out else request.mode
    _start_lease(worker, request, mode, since=started, timed_out=timed_out, keep_cache=keep_cache)
    seconds = worker.clock() - started
    worker.timings = SwapTimings(version=worker.version or "", pause_seconds=seconds)


async def expire(worker: Worker) -> None:
    """End a pause whose lease has expired; does nothing before that."""
    lease = worker.lease
    if lease is None or not lease.has_expired(worker.clock()) or worker.phase is not Phase.PAUSED:
        return
    with _ending_pause(worker):
        if worker.lifecycle.loaded or not worker.is_open:
            # The new weights were not confirmed by a resume, or a fence has closed the latch.
            await closing.quiesce(worker, Event.LEASE_EXPIRED)
        else:
            held = worker.requests()[1]
            await resume_engine(worker)
            worker.enter(Event.LEASE_EXPIRED)
            worker.note_opened(worker.version or "", worker.clock(), held=held)
    worker.lease_expiries += 1
    _LOG.warning(
        "the pause of %s ended because its lease was not renewed; the worker is %s on version %s",
        lease.holder,
        worker.phase,
        worker.version,
        extra=fields("lease_expired", holder=lease.holder, phase=worker.phase),
    )


@asynccontextmanager
async def locked_after_lease(worker: Worker) -> AsyncIterator[None]:
    """Hold the lock, once the lease has expired.

    The call that holds it now may move weights and read files of a store that hangs. So it is ended
    if it outlives the lease for long. A renewal keeps it. An apply is not ended: it resumes the worker
    by itself, and its lease is not renewed.
    """
    ending = asyncio.ensure_future(_end_overdue_call(worker))
    try:
        await worker.lock.acquire()
    finally:
        ending.cancel()
        was_overdue = worker.overdue.is_set()
        worker.overdue.clear()
    if was_overdue and worker.lease is None:
        worker.lease_expiries += 1  # the call failed, and its lease ended with it
    try:
        yield
    finally:
        worker.lock.release()


async def _end_overdue_call(worker: Worker) -> None:
    while (lease := worker.lease) is not None:
        left = lease.expires + worker.limits.overdue_seconds - worker.clock()
        if left > 0:
            await asyncio.sleep(left)
            continue
        if worker.work is not None and worker.work.kind == "apply":
            return
        worker.overdue.set()
        _LOG.warning(
            "the lease of %s ended %.0f s ago, and the worker is still %s: it gives the engine %.0f s"
            " more",
            lease.holder,
            worker.clock() - lease.expires,
            worker.phase,
            worker.limits.cut_seconds,
            extra=fields("lease_expired", holder=lease.holder, phase=worker.phase),
        )
        return


async def resume_engine(worker: Worker) -> None:
    """Let the engine generate again. Under the lock; the caller enters `serving`.

    Errors:
        EngineFailure: The engine failed and is paused again, or the worker is closed and not idle.
    """
    closed = worker.phase is Phase.JOINING
    worker.may_rename = False  # if the answer is lost, the engine may still generate
    try:
        await sleeping.wake(worker, None)
        await worker.engine.resume()
    except BaseException:
        await closing.undo_resume(worker, closed=closed)
        raise


@contextmanager
def _ending_pause(worker: Worker) -> Iterator[None]:
    """Let no pause count as done meanwhile: it renews the lease, and then waits for the lock."""
    worker.ends_pause = True
    try:
        yield
    finally:
        worker.ends_pause = False


async def _stop_generating(worker: Worker, request: PauseRequest, *, keep_cache: bool) -> bool:
    """Pause the engine; returns whether a drain reached its timeout."""
    try:
        if request.mode is not PauseMode.WAIT:
            await worker.engine.pause(request.mode, keep_cache=keep_cache)
            return False
        return not await drained(
            worker.engine,
            request.drain_timeout_seconds,
            cut=worker.cut,
            clock=worker.clock,
            keep_cache=keep_cache,
        )
    except BaseException:
        await _undo_pause(worker)
        raise
    finally:
        if worker.is_open:  # otherwise the fence or drain that closed the latch still needs it
            worker.cut.clear()


async def _undo_pause(worker: Worker) -> None:
    """Serve again after a pause that failed midway, or close the latch if that fails too."""
    try:
        if worker.is_open:
            await worker.engine.resume()
    except BaseException:
        worker.close_latch()
        raise
    finally:
        if worker.is_open:
            worker.enter(Event.PAUSE_FAILED)
        else:
            closing.note_not_idle(worker)


def _start_lease(
    worker: Worker,
    request: PauseRequest,
    mode: PauseMode,
    *,
    since: float,
    timed_out: bool,
    keep_cache: bool,
) -> None:
    if not keep_cache:
        worker.kept.clear()
    worker.lease = authority.PauseLease(
        mode,
        request.holder,
        since,
        expires=worker.clock() + request.lease_seconds,
        drain_timed_out=timed_out,
        cache_kept=keep_cache,
    )
    worker.changed.set()


async def open_latch(worker: Worker, request: OpenRequest, event: Event) -> None:
    """Resume or admit a worker, if its engine has the version of the request. Under the lock.

    Errors:
        Refusal: `VersionMismatch`, `WrongPhase`, or `StaleEpoch`.
        EngineFailure: See `resume_engine`.
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
    if worker.phase is Phase.JOINING and not worker.is_idle:
        await closing.end_requests(worker)
    # A newer call may have come while this one waited: its caller relies on this one having no effect.
    authority.newest(worker.epoch, request.epoch)
    await resume(worker, request.version, event)
    log_serving(worker)


async def resume(worker: Worker, version: str, event: Event) -> None:
    """Let the engine generate, and open the latch by the step of `event`. Under the lock.

    Errors:
        Refusal: `WrongPhase`; a fence has closed the latch.
        EngineFailure: See `resume_engine`.
    """
    if not after(worker.lifecycle, event).admitted:
        raise Refusal(Reason.WRONG_PHASE, "the worker is being fenced")
    started, held = worker.clock(), worker.requests()[1]
    with worker.working("resume", version), _ending_pause(worker):
        await resume_engine(worker)
    worker.enter(event)
    worker.note_opened(version, started, held=held)


def log_serving(worker: Worker) -> None:
    """Log which weights a worker serves now."""
    good = worker.good
    _LOG.info(
        "serving %s",
        description_of(good),
        extra=fields("serving", version=good.version, run_id=good.run_id, digest=good.digest),
    )
