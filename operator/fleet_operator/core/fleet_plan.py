"""Plans a fleet's pods: creates, replaces and removes them.

    goal          `replicas` pods of the current template; while outdated pods are replaced, up to
                  `update.maxSurge` more
    missing       create, with the lowest free ordinal
    too many      drain and delete: first workers that are not admitted, then those with the fewest
                  requests
    failed        delete and recreate, with a backoff and within a budget (`recycling`)
    outdated      drain and delete, at most `update.maxUnavailable` at a time; no drain begins while a
                  rollout holds workers, so that a template change cannot break a barrier
    no owner      adopt

While the template of the fleet's spec is not recorded, no pod is created or replaced.

The trainer of an External fleet addresses workers by their ordinals: there the highest ordinals go,
and 0 to replicas-1 stay. Ordinals of other fleets may have gaps.

Invariant: a serving pod is removed for its template only if the serving pods stay at or above
replicas - maxUnavailable. Here replicas does not count the pods that have been behind a scheduling
gate since before the template changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from fleet_operator.core.actions import Fence
from fleet_operator.core.draining import Leaving, drain, is_marked, may_serve
from fleet_operator.core.facts import NO_WORKERS, Facts, Workers
from fleet_operator.core.manifests import overlay, pods, revisions
from fleet_operator.core.manifests.pod_fields import pod_fields
from fleet_operator.core.manifests.templates import Pod, update_available
from fleet_operator.core.memory import SpecCache
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import unavailable_and_surge
from fleet_operator.core.pod_actions import AdoptPod, BeginDrain, CreatePod, DeletePod, EndDrain
from fleet_operator.core.recycling import recycle
from fleet_operator.core.surplus import (
    OUTDATED,
    dropped_workers,
    kept_and_extra,
    leaving_surplus,
    scaled_reason,
)
from fleet_operator.core.worker_view import WorkerView
from rlfleet_resources.fleet_status import RecycledWorker

CREATE_AT_ONCE = 500
"""Pods created in one reconcile; the next follow when the operator sees these."""
_TEMPLATES: SpecCache[tuple[str, str, Pod]] = SpecCache()


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetPlan:
    """Changes to a fleet's pods.

    Fields:
        revision: hash of the current template.
        calls: fences of workers that must go.
        claimed: uids of workers that drain, or end their drain, with this plan.
        outdated: number of pods with another template.
        update: how pods of this operator release would differ from the recorded template.
        problem: why no pod can be built from the spec; existing pods stay.
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

    @property
    def leaving(self) -> frozenset[str]:
        """Returns the uids of workers that no other plan calls."""
        return self.claimed | {a.pod_uid for a in self.actions if isinstance(a, DeletePod)}


def plan_fleet(
    observed: FleetObserved, *, default_image: str, holds_requests: bool, now: datetime
) -> FleetPlan:
    """Decides which pods to create, to drain and to delete.

    `holds_requests`: a rollout holds workers right now.
    """
    problem, revision, today = _template_from(observed, default_image)
    recorded = observed.template
    living = observed.workers.where(lambda f: not f.pod.deleting)
    failed = living.where(_has_failed)
    sound = living.where(lambda f: not _has_failed(f))
    kept, extra = kept_and_extra(observed, sound, revision)
    outdated = kept.where(lambda f: f.pod.revision != revision)
    _, surge = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    last = observed.spec.replicas + min(surge, len(_replaceable(observed, outdated)))
    dropped = dropped_workers(observed, sound, failed, last)
    lost = {w.pod.uid for w in dropped}
    recycling = recycle(observed, [w for w in failed if w.pod.uid not in lost], now=now)
    leaving = leaving_surplus(observed, kept, extra, revision)
    if not problem:
        others = _except(sound, leaving)
        leaving += _replaced(observed, others, outdated, holds_requests=holds_requests)
    draining = drain(observed, leaving, _except(sound, leaving), now=now)
    created = _created(observed, recorded.pod, revision, last) if recorded and not problem else ()
    deleted = (
        DeletePod(pod_name=w.pod.name, pod_uid=w.pod.uid, reason=scaled_reason(observed))
        for w in dropped
    )
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


def _template_from(observed: FleetObserved, default_image: str) -> tuple[str, str, Pod]:
    """Returns the problem of the spec, or an empty text with the revision and the template."""

    def build() -> tuple[str, str, Pod]:
        own = pod_fields(observed.spec, observed.name)
        if problem := overlay.problem_of(observed.spec.pod_overlay.read(), set_elsewhere=own):
            return problem, "", {}
        return "", revisions.revision_of(observed), pods.template_of(observed, default_image)

    return _TEMPLATES.of(observed.spec, observed.name, default_image, make=build)


def _except(workers: Workers, leaving: Sequence[Leaving]) -> Workers:
    if not leaving:
        return workers
    gone = {one.worker.pod.uid for one in leaving}
    return Workers([w for w in workers if w.pod.uid not in gone])


def _created(
    observed: FleetObserved, template: Pod, revision: str, last: int
) -> tuple[CreatePod, ...]:
    # A pod that is being deleted keeps its ordinal: the new pod is created when it is gone.
    taken = {w.pod.ordinal for w in observed.workers}
    if not observed.is_external and len(taken) >= last:
        return ()
    missing = [n for n in range(last) if n not in taken]
    if not observed.is_external:
        missing = missing[: max(0, last - len(taken))]
    missing = missing[:CREATE_AT_ONCE]
    if not missing:
        return ()
    manifests = pods.pods_of(observed, template, missing, revision=revision)
    return tuple(
        CreatePod(pod_name=m["metadata"]["name"], manifest=m, reason="a worker is missing")
        for m in manifests
    )


def _adopted(observed: FleetObserved, living: Workers) -> tuple[AdoptPod, ...]:
    owner = pods.owner_reference(observed)
    reason = "it has the fleet's labels and no owner"
    return tuple(
        AdoptPod(pod_name=w.pod.name, pod_uid=w.pod.uid, owner=owner, reason=reason)
        for w in living.where(lambda f: not f.pod.owned)
    )


def _replaceable(observed: FleetObserved, outdated: Workers) -> Workers:
    """Returns the outdated workers to replace: none while updates are held.

    While no new pod can be created, only those whose drain has begun.
    """
    if observed.spec.update.is_held:
        return NO_WORKERS
    return outdated if observed.template else outdated.where(lambda f: f.pod.drains)


def _replaced(
    observed: FleetObserved,
    sound: Workers,
    outdated: Workers,
    *,
    holds_requests: bool,
) -> list[Leaving]:
    """Returns the outdated workers that go now. A drain that has begun always continues."""
    replicas = observed.spec.replicas
    unavailable, _ = unavailable_and_surge(observed.spec.update, replicas)
    up = sound.count(lambda f: f.pod.ready and not f.pod.drains)
    allowed = up - (replicas - _long_gated(observed, sound) - unavailable)
    removed: list[WorkerView] = []
    # Workers without clients go first: replacing them costs nothing.
    for worker in sorted(
        _replaceable(observed, outdated), key=lambda w: (may_serve(w), w.pod.ordinal)
    ):
        if not is_marked(worker):
            if holds_requests:
                continue
            if may_serve(worker):
                if allowed <= 0:
                    continue
                allowed -= 1
        removed.append(worker)
    return [Leaving(worker=w, reason=OUTDATED) for w in removed]


def _long_gated(observed: FleetObserved, sound: Workers) -> int:
    """Returns how many pods have been behind a scheduling gate since before the template changed.

    A template change does not wait for these: it cannot end their wait. Pods of the new template
    behind a gate do not count, so that the change stops when no queue admits its pods.
    """
    before = observed.template.held_back if observed.template else 0
    return min(before, sound.count(lambda f: f.pod.gated))


def _has_failed(worker: Facts) -> bool:
    return worker.pod.quarantined or worker.pod.ended
