"""Which pods a fleet should have: creates, replaces and deletes them.

    wanted        ordinals 0 … replicas-1, each with a pod of today's revision; while outdated pods
                  are replaced, up to `update.maxSurge` ordinals more
    missing       → create
    beyond        → delete, highest ordinal first
    failed        → delete and create anew, with back-off and within a budget (`recycling`)
    out of date   → delete, at most `update.maxUnavailable` away at a time, and never while a
                    rollout holds workers, so that a template change cannot break a barrier
    nobody's      → adopt

Invariant: a pod that serves is deleted for its template only when serving pods stay at or above
replicas - maxUnavailable.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from fleet_operator.api.fleet import RecycledWorker
from fleet_operator.core import overlay, pods
from fleet_operator.core.actions import AdoptPod, CreatePod, DeletePod
from fleet_operator.core.observed import FleetObserved, WorkerView
from fleet_operator.core.pod_fields import pod_fields
from fleet_operator.core.recycling import recycle

CREATE_AT_ONCE = 500
"""Pods created in one reconcile; more follow when these have been seen."""
ENDED_PHASES = frozenset({"Failed", "Succeeded"})


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Changes to a fleet's pods.

    Fields:
        revision: hash of the template that pods should have.
        outdated: pods that still have another one.
        problem: why no pod can be made of the spec; those that are there stay.
        exhausted: why failed workers are not made anew.
        recycled: workers made anew within the window, for the status.
    """

    revision: str
    actions: tuple[CreatePod | DeletePod | AdoptPod, ...]
    outdated: int
    problem: str = ""
    exhausted: str = ""
    recycled: tuple[RecycledWorker, ...] = ()
    requeue_after_seconds: float | None = None


def plan_fleet(
    observed: FleetObserved, *, default_image: str, disturbed: bool, now: datetime
) -> FleetPlan:
    """Decide which pods to create and to delete.

    `disturbed`: a rollout holds workers right now.
    """
    own = pod_fields(observed.spec, observed.name)
    problem = overlay.problem_of(observed.spec.pod_overlay, set_elsewhere=own)
    revision = "" if problem else pods.revision_of(observed, default_image)
    living = [w for w in observed.workers if not w.pod.deleting]
    failed = [w for w in living if _has_failed(w)]
    sound = [w for w in living if not _has_failed(w)]
    outdated = [w for w in sound if _is_wanted(w, observed) and w.pod.revision != revision]
    last = observed.spec.replicas + min(observed.spec.update.max_surge, len(outdated))
    recycling = recycle(observed, [w for w in failed if w.pod.ordinal < last], now=now)
    removed = [
        *(_delete(w, _scaled(observed)) for w in failed if w.pod.ordinal >= last),
        *_beyond(observed, sound, revision),
        *recycling.actions,
    ]
    if not disturbed and not problem:
        going = {a.uid for a in removed}
        removed += _replaced(observed, [w for w in sound if w.pod.uid not in going], outdated)
    created = () if problem else _created(observed, default_image, revision, last)
    return FleetPlan(
        revision=revision,
        actions=(*created, *_adopted(observed, living), *removed),
        outdated=0 if problem else len(outdated),
        problem=problem,
        exhausted=recycling.problem,
        recycled=recycling.recycled,
        requeue_after_seconds=recycling.requeue_after_seconds,
    )


def _created(
    observed: FleetObserved, image: str, revision: str, last: int
) -> tuple[CreatePod, ...]:
    # A pod that is being deleted still holds its name: its successor follows when it is gone.
    taken = {w.pod.ordinal for w in observed.workers}
    missing = [n for n in range(last) if n not in taken][:CREATE_AT_ONCE]
    manifests = (pods.build_pod(observed, n, image, revision=revision) for n in missing)
    return tuple(
        CreatePod(name=m["metadata"]["name"], manifest=m, reason="a worker is missing")
        for m in manifests
    )


def _adopted(observed: FleetObserved, living: list[WorkerView]) -> tuple[AdoptPod, ...]:
    owner = pods.owner_reference(observed)
    reason = "it carries the fleet's labels and belongs to nobody"
    return tuple(
        AdoptPod(name=w.pod.name, uid=w.pod.uid, owner=owner, reason=reason)
        for w in living
        if not w.pod.owner
    )


def _beyond(observed: FleetObserved, sound: list[WorkerView], revision: str) -> list[DeletePod]:
    """Pods of ordinals that are not wanted.

    As many as `maxSurge` may be there to bridge a template change: they stay until the workers that
    they stand in for serve with today's template. More than that were scaled away, and one of an
    older template that does not serve bridges nothing.
    """
    extra = sorted((w for w in sound if not _is_wanted(w, observed)), key=lambda w: -w.pod.ordinal)
    bridges = [w for w in extra if w.pod.revision == revision or _may_serve(w)]
    if 0 < len(bridges) <= observed.spec.update.max_surge:
        wanted = [w for w in sound if _is_wanted(w, observed)]
        serving = sum(w.pod.ready and w.pod.revision == revision for w in wanted)
        if serving < observed.spec.replicas:
            extra = [w for w in extra if w.pod.revision != revision and not _may_serve(w)]
    return [_delete(w, _scaled(observed)) for w in extra]


def _scaled(observed: FleetObserved) -> str:
    return f"the fleet has {observed.spec.replicas} replicas now"


def _replaced(
    observed: FleetObserved, sound: list[WorkerView], outdated: list[WorkerView]
) -> list[DeletePod]:
    up = sum(w.pod.ready for w in sound)
    allowed = up - (observed.spec.replicas - observed.spec.update.max_unavailable)
    removed: list[DeletePod] = []
    # Those that do not serve go first: replacing them costs nothing.
    for worker in sorted(outdated, key=lambda w: (_may_serve(w), w.pod.ordinal)):
        if _may_serve(worker):
            if allowed <= 0:
                continue
            allowed -= 1
        removed.append(_delete(worker, "its template is out of date"))
    return removed


def _is_wanted(worker: WorkerView, observed: FleetObserved) -> bool:
    return worker.pod.ordinal < observed.spec.replicas


def _has_failed(worker: WorkerView) -> bool:
    return bool(worker.pod.quarantine) or worker.pod.phase in ENDED_PHASES


def _may_serve(worker: WorkerView) -> bool:
    """Whether its loss could be felt. A probe that fails once on a busy machine (measured: while
    its neighbour starts) does not make an admitted worker one that costs nothing.
    """
    admitted = worker.state is not None and worker.state.admitted and worker.pod.running
    return worker.pod.ready or admitted


def _delete(worker: WorkerView, reason: str) -> DeletePod:
    return DeletePod(name=worker.pod.name, uid=worker.pod.uid, reason=reason)
