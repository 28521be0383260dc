"""Pausing: stopping, holding under a lease, and what happens when nobody renews it."""

from __future__ import annotations

import logging

from fleet_worker.core import fencing
from fleet_worker.core.states import Event
from fleet_worker.protocol import PauseMode, PauseRequest, Phase, SwapTimings
from fleet_worker.runtime import sleeping
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.quiesce import drained
from fleet_worker.runtime.worker import Worker

_LOG = logging.getLogger(__name__)


def renew(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> bool:
    """Renew the lease if there is a pause and nothing new is asked for.

    Also while a load runs: who drives it must be able to say that it is still there.
    """
    lease = worker.lease
    if lease is None or worker.phase not in (Phase.PAUSED, Phase.LOADING):
        return False
    if lease.holder != request.holder:
        return False  # the lease has run out, and another takes over
    stronger = request.mode is PauseMode.ABORT and lease.mode is not PauseMode.ABORT
    stronger |= lease.cache_kept and not keep_cache
    if stronger and worker.phase is Phase.PAUSED:
        return False
    worker.lease = lease.renewed(worker.clock(), request.lease_seconds)
    worker.changed.set()
    return True


async def strengthen(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> None:
    """Turn a pause that holds requests, or caches, into one that does not."""
    aborted = worker.lease is not None and worker.lease.mode is PauseMode.ABORT
    mode = PauseMode.ABORT if aborted or request.mode is PauseMode.ABORT else PauseMode.KEEP
    with worker.working("pause"):
        await worker.engine.pause(mode, keep_cache=keep_cache)
    since = worker.lease.since if worker.lease is not None else worker.clock()
    _hold(worker, request, mode, since=since, timed_out=False, keep_cache=keep_cache)


async def stop(worker: Worker, request: PauseRequest, *, keep_cache: bool = False) -> None:
    """Bring a serving worker to a pause.

    Args:
        worker: Serving.
        request: How.
        keep_cache: Leave what was computed from these weights for later ones to read.
    """
    worker.enter(Event.PAUSE)
    started = worker.clock()
    with worker.working("pause"):
        timed_out = await _stop_generating(worker, request, keep_cache=keep_cache)
    worker.lease = None
    worker.enter(Event.PAUSED)
    if worker.phase is not Phase.PAUSED:
        return  # fenced meanwhile: the fence goes on from here
    mode = PauseMode.KEEP if timed_out else request.mode
    _hold(worker, request, mode, since=started, timed_out=timed_out, keep_cache=keep_cache)
    seconds = worker.clock() - started
    worker.timings = SwapTimings(version=worker.version or "", pause_seconds=seconds)


async def expire(worker: Worker) -> None:
    """End a pause whose lease has run out; does nothing before its time."""
    lease = worker.lease
    if lease is None or not lease.has_expired(worker.clock()) or worker.phase is not Phase.PAUSED:
        return
    if worker.standing.loaded or not worker.is_open:
        # Nobody vouches for the new weights; or a fence has closed the latch and comes next.
        await worker.quiesce(Event.LEASE_EXPIRED)
    else:
        await let_go(worker)
        worker.enter(Event.LEASE_EXPIRED)
        worker.note_opened(worker.version or "", worker.clock())
    worker.lease_expiries += 1
    _LOG.warning(
        "%s did not renew its pause in time; now %s on %s",
        lease.holder,
        worker.phase,
        worker.version,
        extra=fields("lease_expired", holder=lease.holder, phase=worker.phase),
    )


async def let_go(worker: Worker) -> None:
    """Let the engine generate again. Under the lock; the caller takes the step to serving.

    Errors:
        EngineFailure: the engine failed; it is held again as before, or the worker is closed and
            not at rest.
    """
    closed = worker.phase is Phase.JOINING
    try:
        await sleeping.wake(worker, None)
        await worker.engine.resume()
    except BaseException:
        # It may generate already: what has failed can be the answer alone.
        if closed:
            worker.lose_rest()
        else:
            await worker.hold()
        raise


async def _stop_generating(worker: Worker, request: PauseRequest, *, keep_cache: bool) -> bool:
    """Pause the engine; answers whether a drain ran into its deadline."""
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
        await _go_on(worker)
        raise
    finally:
        if worker.is_open:  # else what closed the latch still has to be done
            worker.cut.clear()


async def _go_on(worker: Worker) -> None:
    """A pause has failed midway: serve on, or close where that cannot be had either."""
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
            worker.lose_rest()


def _hold(
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
    worker.lease = fencing.Lease(
        mode,
        request.holder,
        since,
        expires=worker.clock() + request.lease_seconds,
        drain_timed_out=timed_out,
        cache_kept=keep_cache,
    )
    worker.changed.set()
