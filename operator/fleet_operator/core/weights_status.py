"""The status of a WeightVersion, computed from what is observed and from its last status.

The last status holds what cannot be observed: when the rollout and its phase began, the history, and
that a generation was halted.
"""

from __future__ import annotations

from datetime import datetime

from fleet_operator.core.condition_rows import conditions_of
from fleet_operator.core.effect import effect_of, warnings_of
from fleet_operator.core.fleet_status import serving_count
from fleet_operator.core.identity import same_weights
from fleet_operator.core.lagging import lagging_workers
from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.core.rollback_guard import may_go_back
from fleet_operator.core.rollout_history import (
    history_of,
    replaced,
    store_reads_of,
    timings_of,
)
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.strategies.trials import records_after
from fleet_operator.core.weights_conditions import weights_conditions
from fleet_operator.core.weights_in_use import applied_record
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.base import renewed
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase, RolloutWorkers, WeightsStatus


def weights_status(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    *,
    fleet: FleetStatus,
    now: datetime,
) -> WeightsStatus:
    """The status of a WeightVersion that steers its fleet. `fleet`: the status of that."""
    before = weights.status
    desired = rollout.desired
    about_it = before.is_about(desired.version, desired.run_id)
    known = about_it and before.retried == weights.retry
    phase = _phase(rollout)
    tried_again = before.phase is RolloutPhase.HALTED and phase is not before.phase
    fresh = not known or tried_again or before.started_at is None
    started_at = now if fresh or before.started_at is None else before.started_at
    requested_by = weights.requested_by if fresh else before.requested_by
    moved = fresh or phase is not before.phase
    timings = timings_of(observed, weights, rollout, phase, fresh=fresh, now=now)
    serving = serving_count(observed, desired)
    effect = effect_of(observed, desired, None if fresh else before.effect)
    other = replaced(weights, rollout, now=now)
    return renewed(
        before,
        observed_generation=weights.generation,
        desired_version=desired.version,
        desired_run_id=desired.run_id,
        applied_version=rollout.serving,
        applied=(
            applied_record(rollout, before.applied, now=now) if rollout.serving else before.applied
        ),
        phase=phase,
        retried=weights.retry,
        requested_by=requested_by,
        rollback_to=weights.spec.rollback_to if _is_going_back(weights, phase) else None,
        started_at=started_at,
        phase_started_at=now if moved else before.phase_started_at,
        workers=_workers(observed, rollout, before.workers),
        workers_applied=f"{serving}/{observed.spec.replicas}",
        laggards=lagging_workers(
            observed, rollout.desired, before.laggards, goal=rollout.step.goal
        ),
        timings=timings,
        store_reads=store_reads_of(observed, weights, rollout, phase, fresh=fresh),
        effect=effect,
        canary=rollout.step.verdict or before.canary,
        canaries=records_after(
            () if fresh else before.canaries,
            rollout.step.canaries,
            rollout.step.actions,
            desired,
            now=now,
        ),
        superseded_versions=before.superseded_versions
        + (other is not None and other.result == "Superseded"),
        files_unread=rollout.files_unread,
        history=history_of(
            weights,
            rollout,
            phase,
            timings=timings,
            started_at=started_at,
            requested_by=requested_by,
            other=other,
            now=now,
        ),
        conditions=weights_conditions(
            observed, weights, rollout, phase, serving, warnings_of(rollout, effect), fleet, now
        ),
    )


def _phase(rollout: RolloutPlan) -> RolloutPhase:
    if rollout.halted:
        return RolloutPhase.HALTED
    if rollout.suspended:
        return RolloutPhase.SUSPENDED
    if not same_weights(rollout.step.goal, rollout.desired):
        # A rollback or a superseded rollout finishes first: this one has not begun.
        return RolloutPhase.PENDING
    return rollout.step.phase


def refused_status(
    weights: WeightsView | UnreadWeights, reason: ConditionReason, message: str, *, now: datetime
) -> WeightsStatus:
    """Status of a WeightVersion that steers no fleet: the fleet is missing, or another one steers it."""
    states = ((ConditionType.READY, False), (ConditionType.PROGRESSING, False))
    return _idle_status(weights, (*states, (ConditionType.STALLED, True)), reason, message, now=now)


def awaiting_status(
    weights: WeightsView | UnreadWeights, reason: ConditionReason, message: str, *, now: datetime
) -> WeightsStatus:
    """Status of a WeightVersion that steers no fleet yet, because an object may still be created."""
    states = ((ConditionType.READY, False), (ConditionType.PROGRESSING, True))
    return _idle_status(weights, states, reason, message, now=now)


def is_stalled_for(weights: WeightsView | UnreadWeights, reason: ConditionReason) -> bool:
    """Whether the last status is stalled for this reason."""
    stalled = condition_of(weights.status.conditions, ConditionType.STALLED)
    return stalled is not None and stalled.reason is reason


def _idle_status(
    weights: WeightsView | UnreadWeights,
    states: tuple[tuple[ConditionType, bool], ...],
    reason: ConditionReason,
    message: str,
    *,
    now: datetime,
) -> WeightsStatus:
    before = weights.status
    return WeightsStatus(
        unread=before.unread,
        observed_generation=weights.generation,
        desired_version=weights.spec.version if isinstance(weights, WeightsView) else None,
        desired_run_id=weights.spec.run_id if isinstance(weights, WeightsView) else None,
        phase=RolloutPhase.PENDING,
        rollback_to=before.rollback_to,
        superseded_versions=before.superseded_versions,
        history=before.history,
        conditions=conditions_of(
            [(kind, holds, reason, message) for kind, holds in states],
            before.conditions,
            generation=weights.generation,
            now=now,
        ),
    )


def _is_going_back(weights: WeightsView, phase: RolloutPhase) -> bool:
    return phase is not RolloutPhase.APPLIED and may_go_back(weights)


def _workers(
    observed: FleetObserved, rollout: RolloutPlan, before: RolloutWorkers
) -> RolloutWorkers:
    live = observed.workers.where(lambda f: not f.pod.deleting)
    desired = rollout.desired
    return renewed(
        before,
        total=len(live),
        staged=live.count(lambda f: f.has_loaded(desired) or f.has_staged(desired)),
        paused=live.count(lambda f: f.standing is Standing.HELD),
        applied=live.count(
            lambda f: f.standing in {Standing.OPEN, Standing.HELD} and f.has_loaded(desired)
        ),
        failed=len(rollout.step.failed),
    )
