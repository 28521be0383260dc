"""Which pods a fleet should have: creates, replaces and removes them.

    wanted        as many as `replicas`, each with a pod of the current template; while outdated pods
                  are replaced, up to `update.maxSurge` more
    missing       → create, with the lowest free ordinal
    beyond        → drain and delete: workers that are not admitted, then those with the fewest requests
    failed        → delete and recreate, with back-off and within a budget (`recycling`)
    out of date   → drain and delete, at most `update.maxUnavailable` away at a time; none is begun
                  while a rollout holds workers, so that a template change cannot break a barrier
    no owner      → adopt

While the template of the fleet's spec is not recorded, no pod is created, and none is replaced.

The trainer of an External fleet knows its workers by their ordinals: there the highest ones go, and
0 … replicas-1 stay. Ordinals of other fleets may have holes.

Invariant: a pod that serves is taken away for its template only when serving pods stay at or above
replicas - maxUnavailable. Pods that a scheduling gate held back before the template was changed, and
still does, are taken off the replicas there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet_operator.api.fleet import RecycledWorker
from fleet_operator.core import overlay, pods
from fleet_operator.core.actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    Fence,
)
from fleet_operator.core.amounts import unavailable_and_surge
from fleet_operator.core.counts import counted
from fleet_operator.core.draining import Leaving, drain, is_marked, may_serve, requests_of
from fleet_operator.core.observed import FleetObserved, Standing, WorkerView
from fleet_operator.core.pod_fields import pod_fields
from fleet_operator.core.recycling import recycle
from fleet_operator.core.templates import Pod, update_available

CREATE_AT_ONCE = 500
"""Pods created in one reconcile; more follow when these have been seen."""
ENDED_PHASES = frozenset({"Failed", "Succeeded"})
_OUTDATED = "its template is out of date"


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Changes to a fleet's pods.

    Fields:
        revision: hash of the template that pods should have.
        calls: fences of workers that are to go.
        claimed: uids of workers to which only these calls are sent.
        outdated: pods that still have another template.
        update: how pods that were made today would differ from the recorded template.
        problem: why no pod can be made of the spec; those that are there stay.
        exhausted: why failed workers are not recreated.
        recycled: workers recreated within the window, for the status.
    """

    revision: str
    actions: tuple[CreatePod | DeletePod | BeginDrain | EndDrain | AdoptPod, ...]
    outdated: int
    update: str = ""
    calls: tuple[Fence, ...] = ()
    claimed: frozenset[str] = frozenset()
    problem: str = ""
    exhausted: str = ""
    recycled: tuple[RecycledWorker, ...] = ()
    requeue_after_seconds: float | None = None


def plan_fleet(
    observed: FleetObserved, *, default_image: str, disturbed: bool, now: datetime
) -> FleetPlan:
    """Decide which pods to create, to drain and to delete.

    `disturbed`: a rollout holds workers right now.
    """
    own = pod_fields(observed.spec, observed.name)
    problem = overlay.problem_of(observed.spec.pod_overlay, set_elsewhere=own)
    revision = "" if problem else pods.revision_of(observed)
    today = {} if problem else pods.template_of(observed, default_image)
    recorded = observed.template
    living = [w for w in observed.workers if not w.pod.deleting]
    failed = [w for w in living if _has_failed(w)]
    sound = [w for w in living if not _has_failed(w)]
    kept = _kept(observed, sound, revision)
    outdated = [w for w in sound if w.pod.uid in kept and w.pod.revision != revision]
    _, surge = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    last = observed.spec.replicas + min(surge, len(_replaceable(observed, outdated)))
    dropped = _dropped(observed, sound, failed, last)
    lost = {w.pod.uid for w in dropped}
    recycling = recycle(observed, [w for w in failed if w.pod.uid not in lost], now=now)
    leaving = _beyond(observed, sound, kept, revision)
    if not problem:
        gone = {one.worker.pod.uid for one in leaving}
        others = [w for w in sound if w.pod.uid not in gone]
        leaving += _replaced(observed, others, outdated, disturbed=disturbed)
    gone = {one.worker.pod.uid for one in leaving}
    draining = drain(observed, leaving, [w for w in sound if w.pod.uid not in gone], now=now)
    created = _created(observed, recorded.pod, revision, last) if recorded and not problem else ()
    deleted = (DeletePod(name=w.pod.name, uid=w.pod.uid, reason=_scaled(observed)) for w in dropped)
    return FleetPlan(
        revision=revision,
        actions=(
            *created,
            *_adopted(observed, living),
            *deleted,
            *draining.actions,
            *recycling.actions,
        ),
        calls=draining.calls,
        claimed=draining.claimed,
        outdated=0 if problem else len(outdated),
        update=(
            update_available(recorded, today, observed.release) if recorded and not problem else ""
        ),
        problem=problem,
        exhausted=recycling.problem,
        recycled=recycling.recycled,
        requeue_after_seconds=recycling.requeue_after_seconds,
    )


def _kept(observed: FleetObserved, sound: Sequence[WorkerView], revision: str) -> frozenset[str]:
    """Uids of the workers that fill the replicas."""
    replicas = observed.spec.replicas
    if observed.is_external:
        return frozenset(w.pod.uid for w in sound if w.pod.ordinal < replicas)

    def goes_sooner(worker: WorkerView) -> tuple[bool, bool, bool, bool, int, int]:
        pod = worker.pod
        serves, outdated = may_serve(worker), pod.revision != revision
        return (
            *(is_marked(worker), not serves, outdated, not pod.running),
            *(-requests_of(worker), pod.ordinal),
        )

    return frozenset(w.pod.uid for w in sorted(sound, key=goes_sooner)[:replicas])


def _dropped(
    observed: FleetObserved, sound: list[WorkerView], failed: list[WorkerView], last: int
) -> list[WorkerView]:
    """Failed workers that are not wanted at all, highest ordinal first."""
    in_order = sorted(failed, key=lambda w: -w.pod.ordinal)
    if observed.is_external:
        return [w for w in in_order if w.pod.ordinal >= last]
    return in_order[: max(0, len(sound) + len(failed) - last)]


def _created(
    observed: FleetObserved, template: Pod, revision: str, last: int
) -> tuple[CreatePod, ...]:
    # A pod that is being deleted still holds its place: its successor follows when it is gone.
    taken = {w.pod.ordinal for w in observed.workers}
    missing = [n for n in range(last) if n not in taken]
    if not observed.is_external:
        missing = missing[: max(0, last - len(taken))]
    missing = missing[:CREATE_AT_ONCE]
    manifests = (pods.pod_of(observed, template, n, revision=revision) for n in missing)
    return tuple(
        CreatePod(name=m["metadata"]["name"], manifest=m, reason="a worker is missing")
        for m in manifests
    )


def _adopted(observed: FleetObserved, living: list[WorkerView]) -> tuple[AdoptPod, ...]:
    owner = pods.owner_reference(observed)
    reason = "it carries the fleet's labels and has no owner"
    return tuple(
        AdoptPod(name=w.pod.name, uid=w.pod.uid, owner=owner, reason=reason)
        for w in living
        if not w.pod.owner
    )


def _beyond(
    observed: FleetObserved, sound: list[WorkerView], kept: frozenset[str], revision: str
) -> list[Leaving]:
    """Workers beyond the replicas, but for those that bridge a template change."""
    extra = sorted((w for w in sound if w.pod.uid not in kept), key=lambda w: -w.pod.ordinal)
    wanted = [w for w in sound if w.pod.uid in kept]
    bridging = {w.pod.uid for w in _bridges(observed, wanted, extra, revision)}
    held = observed.spec.update.is_held
    return [
        Leaving(
            worker=w,
            reason=_scaled(observed) if held or w.pod.revision == revision else _OUTDATED,
        )
        for w in extra
        if is_marked(w) or w.pod.uid not in bridging
    ]


def _bridges(
    observed: FleetObserved, kept: list[WorkerView], extra: list[WorkerView], revision: str
) -> list[WorkerView]:
    """The workers beyond the replicas that stay for a while: up to `maxSurge`, for kept ones that do
    not serve with the current template.

    Those that serve stand in for these; others, of the current template, come in place of outdated
    ones. A held update replaces none, and has no bridges. More than `maxSurge` were scaled away. In an
    External fleet any ordinal may be the one that does not serve: no more stay than stand in for one.
    """
    replicas = observed.spec.replicas
    _, surge = unavailable_and_surge(observed.spec.update, replicas)
    waits_for = replicas - sum(_serves(w) and w.pod.revision == revision for w in kept)
    if observed.spec.update.is_held or waits_for <= 0:
        return []
    outdated = any(w.pod.revision != revision for w in kept)
    serving = [w for w in extra if observed.template and may_serve(w)]
    coming = [w for w in extra if outdated and w.pod.revision == revision and w not in serving]
    bridges = [*serving, *coming]
    if observed.is_external:
        in_order = sorted(bridges, key=lambda w: (not w.pod.ready, w.pod.ordinal))
        return in_order[: min(surge, waits_for)]
    return bridges if len(bridges) <= surge else []


def _serves(worker: WorkerView) -> bool:
    """Whether clients get tokens from it now: the kubelet counts one that holds its requests, too."""
    return worker.pod.ready and worker.standing is not Standing.HELD


def _scaled(observed: FleetObserved) -> str:
    return f"the fleet has {counted(observed.spec.replicas, 'replica')} now"


def _replaceable(observed: FleetObserved, outdated: list[WorkerView]) -> list[WorkerView]:
    """The outdated workers that are replaced: none while updates are held.

    While no successor can be made, none but those whose drain has begun.
    """
    if observed.spec.update.is_held:
        return []
    return outdated if observed.template else [w for w in outdated if is_marked(w)]


def _replaced(
    observed: FleetObserved,
    sound: list[WorkerView],
    outdated: list[WorkerView],
    *,
    disturbed: bool,
) -> list[Leaving]:
    """Outdated workers that go now. A drain that has begun goes on, whatever else happens."""
    replicas = observed.spec.replicas
    unavailable, _ = unavailable_and_surge(observed.spec.update, replicas)
    up = sum(w.pod.ready and not is_marked(w) for w in sound)
    allowed = up - (replicas - _held_back(observed, sound) - unavailable)
    removed: list[WorkerView] = []
    # Those that do not serve go first: replacing them costs nothing.
    for worker in sorted(
        _replaceable(observed, outdated), key=lambda w: (may_serve(w), w.pod.ordinal)
    ):
        if not is_marked(worker):
            if disturbed:
                continue
            if may_serve(worker):
                if allowed <= 0:
                    continue
                allowed -= 1
        removed.append(worker)
    return [Leaving(worker=w, reason=_OUTDATED) for w in removed]


def _held_back(observed: FleetObserved, sound: list[WorkerView]) -> int:
    """How many workers a queue held back before the template was changed, and still does.

    A template change does not wait for these: it cannot end their wait. What it has taken away itself
    and the queue holds back now is not among them: a template that no queue lets in stops there.
    """
    before = observed.template.held_back if observed.template else 0
    return min(before, sum(w.pod.is_gated for w in sound))


def _has_failed(worker: WorkerView) -> bool:
    return bool(worker.pod.quarantine) or worker.pod.phase in ENDED_PHASES
