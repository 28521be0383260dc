"""The status of an InferenceFleet, computed anew from what is observed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime

from fleet_operator.api import names
from fleet_operator.api.base import renewed
from fleet_operator.api.conditions import (
    Condition,
    ConditionReason,
    ConditionType,
    new_condition,
)
from fleet_operator.api.fleet import FleetStatus, WorkerCounts
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.amounts import unavailable_and_surge
from fleet_operator.core.counts import agree, counted, counted_of
from fleet_operator.core.fleet_plan import FleetPlan
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.laggards import laggards_of
from fleet_operator.core.observed import FleetObserved, Standing, Target, WorkerView
from fleet_operator.core.pod_troubles import cannot_run, of_another_release, waits_for, will_not_go
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.usage import applied_record, sources_in_use, versions_of
from fleet_worker.protocol import Phase


def fleet_status(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, *, now: datetime
) -> FleetStatus:
    """What a person should see of the fleet now."""
    live = [w for w in observed.workers if not w.pod.deleting]
    return renewed(
        observed.status,
        observed_generation=observed.generation,
        operator=observed.operator,
        replicas=len(live),
        ready_replicas=sum(w.pod.ready for w in live),
        updated_replicas=sum(w.pod.revision == pods.revision for w in live),
        selector=names.fleet_selector(observed.name),
        desired_version=rollout.desired.version,
        desired_run_id=rollout.desired.run_id,
        applied_version=rollout.serving,
        applied=applied_record(rollout, observed.status.applied, now=now),
        versions=versions_of(observed),
        sources_in_use=sources_in_use(observed, rollout),
        pinned=rollout.pinned,
        workers=_counts(live, observed.status.workers),
        laggards=laggards_of(observed, rollout.desired, observed.status.laggards),
        recycled=pods.recycled,
        endpoint=names.endpoint_url(observed.name, observed.namespace, observed.spec.serving.port),
        conditions=_conditions(observed, rollout, pods, now),
    )


def serving_count(observed: FleetObserved, weights: Target) -> int:
    """Workers that generate with these weights."""
    return sum(w.standing is Standing.OPEN and w.has_loaded(weights) for w in observed.workers)


def unseen_count(observed: FleetObserved) -> int:
    """Workers that generate and get no clients yet: the Service follows the kubelet's probe, which
    sees an admission a second later.
    """
    return sum(w.standing is Standing.OPEN and not w.pod.ready for w in observed.workers)


def _counts(live: list[WorkerView], before: WorkerCounts) -> WorkerCounts:
    phases = Counter(w.state.phase for w in live if w.state and w.standing is not Standing.ABSENT)
    return renewed(
        before,
        total=len(live),
        serving=phases[Phase.SERVING],
        joining=phases[Phase.JOINING] + phases[Phase.STARTING],
        staging=sum(w.operation.startswith("stage") for w in live),
        paused=phases[Phase.PAUSED] + phases[Phase.PAUSING],
        loading=phases[Phase.LOADING],
        broken=phases[Phase.BROKEN],
        quarantined=sum(bool(w.pod.quarantine) for w in live),
    )


def _conditions(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, now: datetime
) -> tuple[Condition, ...]:
    made = [
        _ready(observed, rollout, pods),
        _available(observed, rollout),
        _progressing(observed, rollout, pods, now),
    ]
    if (stalled := _stalled(observed, rollout, pods, now)) is not None:
        made.append(stalled)
    if (update := _update_available(observed, pods)) is not None:
        made.append(update)
    return tuple(
        new_condition(
            observed.status.conditions,
            kind,
            holds=holds,
            reason=reason,
            message=message,
            generation=observed.generation,
            now=now,
        )
        for kind, holds, reason, message in made
    )


_Made = tuple[ConditionType, bool, ConditionReason, str]


def _ready(observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan) -> _Made:
    replicas, desired = observed.spec.replicas, rollout.desired
    serving = serving_count(observed, desired)
    told = f"{counted_of(serving, replicas, 'worker', 'serves', 'serve')} version {desired.label}"
    problem = rollout.step.problem
    rolling = rollout.step.phase not in {RolloutPhase.APPLIED, RolloutPhase.PENDING}
    to_replace = 0 if observed.spec.update.is_held else pods.outdated
    missing = serving < replicas or to_replace or len(observed.workers) > replicas
    unseen = unseen_count(observed)
    to_come = f"{told}; {unseen} {agree(unseen, 'is', 'are')} not in the Service yet"
    obstacles = (
        (replicas == 0, ConditionReason.NO_WORKERS, "replicas is 0"),
        (pods.problem, ConditionReason.INVALID_SPEC, f"{told}; {pods.problem}"),
        (rollout.halted, ConditionReason.HALTED, f"{told}; version {desired.label} was given up"),
        (rollout.suspended, ConditionReason.SUSPENDED, told),
        (problem, problem.reason if problem else ConditionReason.HALTED, told),
        (rolling, ConditionReason.ROLLING_OUT, _rolling(rollout)),
        (
            rollout.step.awaits_source,
            ConditionReason.WAITING_FOR_CHECKPOINT,
            f"{told}; {rollout.step.note}",
        ),
        (missing, ConditionReason.WAITING_FOR_WORKERS, _with_waits(told, observed)),
        (unseen, ConditionReason.WAITING_FOR_WORKERS, to_come),
    )
    for holds, reason, message in obstacles:
        if holds:
            return ConditionType.READY, False, reason, message
    return ConditionType.READY, True, ConditionReason.ALL_WORKERS_SERVING, told


def _available(observed: FleetObserved, rollout: RolloutPlan) -> _Made:
    # A pause holds requests for a moment; it does not make a fleet unavailable. Nor do two versions
    # side by side, where the strategy lets them.
    served = {WeightsId.of(t) for t in (rollout.applied, rollout.step.goal, rollout.desired)}
    members = sum(
        w.standing in {Standing.OPEN, Standing.HELD} and any(w.has_loaded(s) for s in served)
        for w in observed.workers
    )
    replicas = observed.spec.replicas
    unavailable, _ = unavailable_and_surge(observed.spec.update, replicas)
    least = max(1, replicas - unavailable)
    serve = agree(members, "serves", "serve")
    told = (
        f"{counted(members, 'worker')} {serve} version {rollout.applied.label}, "
        f"at least {least} should"
    )
    if rollout.step.disturbed or members >= least:
        return ConditionType.AVAILABLE, True, ConditionReason.MINIMUM_SERVING, _minimum(least)
    reason = ConditionReason.NO_WORKERS if members == 0 else ConditionReason.BELOW_MINIMUM
    return ConditionType.AVAILABLE, False, reason, told


def _update_available(observed: FleetObserved, pods: FleetPlan) -> _Made | None:
    update, outdated = observed.spec.update, pods.outdated
    by_deletion = update.type == "OnDelete"
    reason, told = ConditionReason.NEW_TEMPLATE, list[str]()
    if update.is_held and outdated:
        reason = ConditionReason.UPDATE_HELD
        on_delete = f"Delete {agree(outdated, 'its pod', 'their pods')}"
        remedy = on_delete if by_deletion else "Set spec.update.paused to false"
        workers = f"{counted(outdated, 'worker')} {agree(outdated, 'has', 'have')}"
        them = agree(outdated, "it", "them")
        told.append(f"{workers} an older template of the spec. {remedy} to replace {them}")
    if pods.update:
        remedy = "set spec.update.restartedAt to a new value"
        if update.is_held:
            remedy += (
                ", and delete the pods," if by_deletion else " and spec.update.paused to false"
            )
        told.append(f"{pods.update}. No worker is replaced for it: {remedy} to replace all")
    if not told:
        return None
    return ConditionType.UPDATE_AVAILABLE, True, reason, ". ".join(told)


def _minimum(least: int) -> str:
    return f"at least {counted(least, 'worker')} {agree(least, 'serves', 'serve')}"


def _progressing(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, now: datetime
) -> _Made:
    if rollout.step.phase.value in _ROLLING_REASONS and rollout.step.problem is None:
        reason = _ROLLING_REASONS[rollout.step.phase.value]
        return ConditionType.PROGRESSING, True, reason, _rolling(rollout)
    to_replace = 0 if observed.spec.update.is_held else pods.outdated
    if pods.actions or to_replace or len(observed.workers) != observed.spec.replicas:
        wanted = counted(observed.spec.replicas, "replica")
        told = f"{counted(len(observed.workers), 'pod')} for {wanted}, {pods.outdated} outdated"
        return ConditionType.PROGRESSING, True, ConditionReason.REPLACING_WORKERS, told
    problem, desired = rollout.step.problem, rollout.desired
    trouble, serving = cannot_run(observed, now), serving_count(observed, desired)
    share = counted_of(serving, observed.spec.replicas, "worker", "serves", "serve")
    told = _with_waits(f"{share} version {desired.label}", observed)
    obstacles = (
        (problem, False, problem.reason if problem else ConditionReason.HALTED, told),
        (rollout.halted, False, ConditionReason.HALTED, told),
        (rollout.suspended, False, ConditionReason.SUSPENDED, told),
        (trouble, False, ConditionReason.WORKERS_FAILING, trouble),
        (
            rollout.step.awaits_source,
            True,
            ConditionReason.WAITING_FOR_CHECKPOINT,
            rollout.step.note,
        ),
        (serving < observed.spec.replicas, True, ConditionReason.WAITING_FOR_WORKERS, told),
    )
    for there, holds, reason, message in obstacles:
        if there:
            return ConditionType.PROGRESSING, holds, reason, message
    return ConditionType.PROGRESSING, False, ConditionReason.UP_TO_DATE, "nothing is left to do"


_ROLLING_REASONS = {
    RolloutPhase.JUDGING.value: ConditionReason.JUDGING,
    RolloutPhase.STAGING.value: ConditionReason.STAGING,
    RolloutPhase.PAUSING.value: ConditionReason.PAUSING,
    RolloutPhase.LOADING.value: ConditionReason.LOADING,
    RolloutPhase.RESUMING.value: ConditionReason.RESUMING,
}


def _stalled(
    observed: FleetObserved, rollout: RolloutPlan, pods: FleetPlan, now: datetime
) -> _Made | None:
    if pods.problem:
        told = f"{pods.problem}. Workers that are there stay; none can be made until it is repaired"
        return ConditionType.STALLED, True, ConditionReason.INVALID_SPEC, told
    problem = rollout.step.problem
    if told := of_another_release(observed):
        # First, since it may be the cause of the other; that is kept.
        told = f"{told}. {problem.reason}: {problem.message}" if problem is not None else told
        return ConditionType.STALLED, True, ConditionReason.PROTOCOL_MISMATCH, told
    if problem is not None:
        return ConditionType.STALLED, True, problem.reason, problem.message
    if rollout.halted and observed.base_weights is not None:
        told = f"see WeightVersion {observed.base_weights.name}"
        return ConditionType.STALLED, True, ConditionReason.HALTED, told
    if pods.exhausted:
        return ConditionType.STALLED, True, ConditionReason.FAILURE_BUDGET_EXCEEDED, pods.exhausted
    told = cannot_run(observed, now) or will_not_go(observed, now)
    return (ConditionType.STALLED, True, ConditionReason.WORKERS_FAILING, told) if told else None


def _with_waits(told: str, observed: FleetObserved) -> str:
    waits = waits_for(observed)
    return f"{told}; {waits}" if waits else told


def _rolling(rollout: RolloutPlan) -> str:
    return f"version {rollout.step.goal.label}: {rollout.step.note}"
