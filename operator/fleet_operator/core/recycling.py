"""Recreates failed workers, with a backoff and within `spec.recycle`.

A quarantined or ended pod is deleted and created again. The wait doubles each time for the same
worker. When the worker or the fleet has reached its limit within the window, no pod is deleted, and
Stalled reports it.

The status of the fleet records the recreations by pod name. The list is bounded: the oldest are
counted together in a last entry without a name, so that the limit of the fleet still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import rounded_up
from fleet_operator.core.pod_actions import DeletePod
from fleet_operator.core.worker_view import WorkerView
from fleet_operator.counts import agree, counted
from rlfleet_resources.fleet_status import MAX_RECYCLED, RecycledWorker

FIRST_WAIT_SECONDS = 10.0
LONGEST_WAIT_SECONDS = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Recycling:
    """The pods to delete now, the recreations within the window, and why no more pods are deleted."""

    actions: tuple[DeletePod, ...] = ()
    recycled: tuple[RecycledWorker, ...] = ()
    problem: str = ""
    requeue_after_seconds: float | None = None


def recycle(observed: FleetObserved, failed: Sequence[WorkerView], *, now: datetime) -> Recycling:
    """Decide which failed workers are recreated now."""
    settings, allowed = observed.spec.recycle, _allowed_per_fleet(observed)
    begin = now - timedelta(seconds=settings.window_seconds)
    known = {r.pod: _not_in_future(r, now) for r in observed.status.recycled if r.last_at > begin}
    used = sum(r.count for r in known.values())
    actions: list[DeletePod] = []
    waits: list[float] = []
    exhausted: list[WorkerView] = []
    for worker in failed:
        entry = known.get(worker.pod.name)
        count = entry.count if entry else 0
        if entry and entry.uid == worker.pod.uid:
            actions.append(
                _delete(worker)
            )  # decided before; the API server may not have received it
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


def _not_in_future(entry: RecycledWorker, now: datetime) -> RecycledWorker:
    """The entry, with a time in the future moved to now.

    Another clock may have recorded it. The backoff would last for as long as the clocks differ.
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
        f"recreated: {counted(settings.max_per_worker, 'time')} per worker and "
        f"{counted(_allowed_per_fleet(observed), 'time')} per fleet are allowed within "
        f"{settings.window_seconds} s. {first.name}: {first.quarantine or first.problem}. Find the "
        "cause, then delete the pod."
    )


def _allowed_per_fleet(observed: FleetObserved) -> int:
    return rounded_up(observed.spec.recycle.max_per_fleet, observed.spec.replicas)


def _delete(worker: WorkerView) -> DeletePod:
    pod = worker.pod
    if pod.quarantine:
        reason = f"it was quarantined: {pod.quarantine}"
    else:
        reason = f"it ended: {pod.problem or pod.phase}"
    return DeletePod(pod_name=pod.name, pod_uid=pod.uid, reason=reason)
