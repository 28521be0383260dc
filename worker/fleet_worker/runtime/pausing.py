"""Pausing: stopping, holding under a lease, and what happens when nobody renews it."""

from __future__ import annotations

import logging

from fleet_worker.core import fencing
from fleet_worker.core.states import Event
from fleet_worker.protocol import PauseMode, PauseRequest, Phase, SwapTimings
from fleet_worker.runtime.logs import fields
from fleet_worker.runtime.quiesce import drained
from fleet_worker.runtime.worker import Worker

_LOG = logging.getLogger(__name__)


def renew(worker: Worker, request: PauseRequest) -> bool:
    """Renew the lease if there is a pause and the mode asks for nothing new.

    Also while a load runs: who drives it must be able to say that it is still there.
    """
    lease = worker.lease
    if lease is None or worker.phase not in (Phase.PAUSED, Phase.LOADING):
        return False
    stronger = request.mode is PauseMode.ABORT and lease.mode is not PauseMode.ABORT
    if stronger and worker.phase is Phase.PAUSED:
        return False
    worker.lease = lease.renewed(worker.clock(), request.lease_seconds)
    worker.changed.set()
    return True


async def abort_held(worker: Worker, request: PauseRequest) -> None:
    """Turn a pause that holds requests into one that has ended them."""
    with worker.working("pause"):
        await worker.engine.pause(request.mode)
    since = worker.lease.since if worker.lease is not None else worker.clock()
    _hold(worker, request, request.mode, since=since, timed_out=False)


async def stop(worker: Worker, request: PauseRequest) -> None:
    """Bring a serving worker to a pause."""
    worker.enter(Event.PAUSE)
    started = worker.clock()
    with worker.working("pause"):
        timed_out = await _stop_generating(worker, request)
    worker.lease = None
    worker.enter(Event.PAUSED)
    if worker.phase is not Phase.PAUSED:
        return  # fenced meanwhile: the fence goes on from here
    mode = PauseMode.KEEP if timed_out else request.mode
    _hold(worker, request, mode, since=started, timed_out=timed_out)
    seconds = worker.clock() - started
    worker.timings = SwapTimings(version=worker.version or "", pause_seconds=seconds)


async def expire(worker: Worker) -> None:
    """End a pause whose lease has run out; does nothing before its time."""
    lease = worker.lease
    if lease is None or not lease.has_expired(worker.clock()) or worker.phase is not Phase.PAUSED:
        return
    if worker.standing.loaded:
        # Nobody vouches for the new weights: wait for the operator.
        await worker.quiesce(Event.LEASE_EXPIRED)
    else:
        await worker.engine.resume()
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


async def _stop_generating(worker: Worker, request: PauseRequest) -> bool:
    """Pause the engine; answers whether a drain ran into its deadline."""
    try:
        if request.mode is not PauseMode.WAIT:
            await worker.engine.pause(request.mode)
            return False
        deadline = request.drain_timeout_seconds
        return not await drained(worker.engine, deadline, cut=worker.cut, clock=worker.clock)
    except Exception:
        worker.enter(Event.PAUSE_FAILED)
        await worker.engine.resume()
        raise
    finally:
        if worker.is_open:  # else what closed the latch still has to be done
            worker.cut.clear()


def _hold(
    worker: Worker, request: PauseRequest, mode: PauseMode, *, since: float, timed_out: bool
) -> None:
    expires = worker.clock() + request.lease_seconds
    worker.lease = fencing.Lease(mode, request.holder, since, expires, drain_timed_out=timed_out)
    worker.changed.set()
