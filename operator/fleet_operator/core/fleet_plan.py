"""Which pods a fleet should have: creates, replaces and deletes them.

    wanted        ordinals 0 … replicas-1, each with a pod of today's revision
    missing       → create
    beyond        → delete, highest ordinal first
    quarantined   → delete; it is created anew
    ended         → delete (evicted, failed); it is created anew
    out of date   → delete, at most `update.maxUnavailable` away at a time, and never while a
                    rollout holds workers, so that a template change cannot break a barrier

Invariant: a pod that serves is deleted for its template only when serving pods stay at or above
replicas - maxUnavailable.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.core import overlay, pods
from fleet_operator.core.actions import CreatePod, DeletePod
from fleet_operator.core.observed import FleetObserved, WorkerView

CREATE_AT_ONCE = 500
"""Pods created in one reconcile; more follow when these have been seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Changes to a fleet's pods.

    Fields:
        revision: hash of the template that pods should have.
        outdated: pods that still have another one.
        problem: why no pod can be made of the spec; those that are there stay.
    """

    revision: str
    actions: tuple[CreatePod | DeletePod, ...]
    outdated: int
    problem: str = ""


def plan_fleet(observed: FleetObserved, *, default_image: str, disturbed: bool) -> FleetPlan:
    """Decide which pods to create and to delete.

    `disturbed`: a rollout holds workers right now.
    """
    wanted = [w for w in observed.workers if w.pod.ordinal < observed.spec.replicas]
    if problem := overlay.problem_of(observed.spec.pod_overlay):
        gone = (*_beyond(observed), *_lost(wanted))
        return FleetPlan(revision="", actions=gone, outdated=0, problem=problem)
    revision = pods.revision_of(observed, default_image)
    outdated = [w for w in wanted if w.pod.revision != revision and not w.pod.deleting]
    removed = [*_beyond(observed), *_lost(wanted)]
    if not disturbed:
        removed += _replaced(observed, wanted, outdated)
    return FleetPlan(
        revision=revision,
        actions=(*_created(observed, default_image, revision), *removed),
        outdated=len(outdated),
    )


def _created(observed: FleetObserved, image: str, revision: str) -> tuple[CreatePod, ...]:
    # A pod that is being deleted still holds its name: its successor follows when it is gone.
    taken = {w.pod.ordinal for w in observed.workers}
    missing = [n for n in range(observed.spec.replicas) if n not in taken][:CREATE_AT_ONCE]
    manifests = (pods.build_pod(observed, n, image, revision=revision) for n in missing)
    return tuple(
        CreatePod(name=m["metadata"]["name"], manifest=m, reason="a worker is missing")
        for m in manifests
    )


def _beyond(observed: FleetObserved) -> list[DeletePod]:
    replicas = observed.spec.replicas
    extra = [w for w in observed.workers if w.pod.ordinal >= replicas and not w.pod.deleting]
    extra.sort(key=lambda w: -w.pod.ordinal)
    return [_delete(w, f"the fleet has {replicas} replicas now") for w in extra]


def _lost(wanted: list[WorkerView]) -> list[DeletePod]:
    removed: list[DeletePod] = []
    for worker in wanted:
        pod = worker.pod
        if pod.deleting:
            continue
        if pod.quarantine:
            removed.append(_delete(worker, f"it was quarantined: {pod.quarantine}"))
        elif pod.phase in {"Failed", "Succeeded"}:
            removed.append(_delete(worker, f"it ended: {pod.trouble or pod.phase}"))
    return removed


def _replaced(
    observed: FleetObserved, wanted: list[WorkerView], outdated: list[WorkerView]
) -> list[DeletePod]:
    replicas = observed.spec.replicas
    up = sum(w.pod.ready and not w.pod.deleting for w in wanted)
    allowed = up - (replicas - observed.spec.update.max_unavailable)
    removed: list[DeletePod] = []
    # Those that do not serve go first: replacing them costs nothing.
    for worker in sorted(outdated, key=lambda w: (_may_serve(w), w.pod.ordinal)):
        if worker.pod.quarantine or worker.pod.phase in {"Failed", "Succeeded"}:
            continue
        if _may_serve(worker):
            if allowed <= 0:
                continue
            allowed -= 1
        removed.append(_delete(worker, "its template is out of date"))
    return removed


def _may_serve(worker: WorkerView) -> bool:
    """Whether its loss could be felt. A probe that fails once on a busy machine (measured: while
    its neighbour starts) does not make an admitted worker one that costs nothing.
    """
    admitted = worker.state is not None and worker.state.admitted and worker.pod.running
    return worker.pod.ready or admitted


def _delete(worker: WorkerView, reason: str) -> DeletePod:
    return DeletePod(name=worker.pod.name, uid=worker.pod.uid, reason=reason)
