"""Makes failed workers anew, with back-off and within a budget, so that nothing thrashes.

A quarantined or ended pod is deleted and created again. The same worker is given twice as long each
time; when it, or the fleet as a whole, has used up its budget within the window, nothing is deleted
any more and a person is asked.

What was done stands in the fleet's status, by the pod's name. The list is bounded: what is oldest
is counted together in a last entry without a name, so that the fleet's budget holds nevertheless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet_operator.api.fleet import MAX_RECYCLED, RecycledWorker
from fleet_operator.core.actions import DeletePod
from fleet_operator.core.amounts import rounded_up
from fleet_operator.core.counts import agree, counted
from fleet_operator.core.observed import FleetObserved, WorkerView

FIRST_WAIT_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """What to delete now, what was deleted within the window, and why there is no more."""

    actions: tuple[DeletePod, ...] = ()
    recycled: tuple[RecycledWorker, ...] = ()
    problem: str = ""
    requeue_after_seconds: float | None = None


def recycle(observed: FleetObserved, failed: Sequence[WorkerView], *, now: datetime) -> Recycling:
    """Decide which of the failed workers are made anew now."""
    settings, allowed = observed.spec.recycle, _allowed_per_fleet(observed)
    begin = now - timedelta(seconds=settings.window_seconds)
    known = {r.pod: _not_to_come(r, now) for r in observed.status.recycled if r.last_at > begin}
    used = sum(r.count for r in known.values())
    actions: list[DeletePod] = []
    waits: list[float] = []
    exhausted: list[WorkerView] = []
    for worker in failed:
        entry = known.get(worker.pod.name)
        count = entry.count if entry else 0
        if entry and entry.uid == worker.pod.uid:
            actions.append(_delete(worker))  # decided before; perhaps it did not get through
            continue
        if count >= settings.max_per_worker or used >= allowed:
            exhausted.append(worker)
            continue
        wait = _wait_seconds(entry, now)
        if wait > 0:
            waits.append(wait)
            continue
        used += 1
        known[worker.pod.name] = RecycledWorker(
            pod=worker.pod.name, uid=worker.pod.uid, count=count + 1, last_at=now
        )
        actions.append(_delete(worker))
    return Recycling(
        actions=tuple(actions),
        recycled=_bounded(list(known.values())),
        problem=_problem(observed, exhausted),
        requeue_after_seconds=min(waits, default=None),
    )


def _not_to_come(entry: RecycledWorker, now: datetime) -> RecycledWorker:
    """What another clock has recorded, as of now where that is still to come: counted from there the
    back-off could last for as long as the clocks differ.
    """
    return entry.model_copy(update={"last_at": now}) if entry.last_at > now else entry


def _bounded(entries: list[RecycledWorker]) -> tuple[RecycledWorker, ...]:
    entries.sort(key=lambda r: (r.pod != "", r.last_at), reverse=True)
    if len(entries) <= MAX_RECYCLED:
        return tuple(entries)
    kept, rest = entries[: MAX_RECYCLED - 1], entries[MAX_RECYCLED - 1 :]
    latest = max(r.last_at for r in rest)
    folded = RecycledWorker(pod="", uid="", count=sum(r.count for r in rest), last_at=latest)
    return (*kept, folded)


def _wait_seconds(entry: RecycledWorker | None, now: datetime) -> float:
    if entry is None:
        return 0
    longest = min(FIRST_WAIT_SECONDS * 2.0 ** (entry.count - 1), LONGEST_WAIT_SECONDS)
    return longest - (now - entry.last_at).total_seconds()


def _problem(observed: FleetObserved, exhausted: Sequence[WorkerView]) -> str:
    if not exhausted:
        return ""
    settings = observed.spec.recycle
    first = exhausted[0].pod
    return (
        f"{counted(len(exhausted), 'failed worker')} {agree(len(exhausted), 'is', 'are')} not "
        f"recreated: {counted(settings.max_per_worker, 'time')} a worker and "
        f"{counted(_allowed_per_fleet(observed), 'time')} a fleet are allowed within "
        f"{settings.window_seconds} s. {first.name}: {first.quarantine or first.trouble}. Find the "
        "cause, then delete the pod."
    )


def _allowed_per_fleet(observed: FleetObserved) -> int:
    return rounded_up(observed.spec.recycle.max_per_fleet, observed.spec.replicas)


def _delete(worker: WorkerView) -> DeletePod:
    pod = worker.pod
    if pod.quarantine:
        reason = f"it was quarantined: {pod.quarantine}"
    else:
        reason = f"it ended: {pod.trouble or pod.phase}"
    return DeletePod(name=pod.name, uid=pod.uid, reason=reason)
