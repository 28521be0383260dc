"""The status of a WeightVersion, computed from what is observed and from its last status.

The last status is needed for what cannot be observed: when the rollout and its phase began, what
came before, and that a generation was halted.
"""

from __future__ import annotations

from datetime import datetime

from fleet_operator.api.base import renewed
from fleet_operator.api.conditions import (
    Condition,
    ConditionReason,
    ConditionType,
    condition_of,
    new_condition,
)
from fleet_operator.api.weights import (
    MAX_HISTORY,
    HistoryEntry,
    RolloutPhase,
    RolloutTimings,
    RolloutWorkers,
    WeightsStatus,
)
from fleet_operator.core.counts import agree, counted_of
from fleet_operator.core.effect import effect_of, warning_of
from fleet_operator.core.fleet_status import serving_count, unseen_count
from fleet_operator.core.identity import same_weights
from fleet_operator.core.laggards import laggards_of
from fleet_operator.core.observed import FleetObserved, Standing, UnreadWeights, WeightsView
from fleet_operator.core.rewind import may_go_back
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.usage import applied_record

_TIMED = {
    RolloutPhase.STAGING: "stage_seconds",
    RolloutPhase.PAUSING: "pause_seconds",
    RolloutPhase.LOADING: "load_seconds",
    RolloutPhase.RESUMING: "resume_seconds",
}


def weights_status(
    observed: FleetObserved, weights: WeightsView, rollout: RolloutPlan, *, now: datetime
) -> WeightsStatus:
    """What a person should see of the rollout now."""
    before = weights.status
    desired = rollout.desired
    about_it = before.is_about(desired.version, desired.run_id)
    known = about_it and before.retried == weights.retry
    phase = _phase(rollout)
    tried_again = before.phase is RolloutPhase.HALTED and phase is not before.phase
    fresh = not known or tried_again or before.started_at is None
    started_at = now if fresh or before.started_at is None else before.started_at
    moved = fresh or phase is not before.phase
    timings = _timings(observed, weights, rollout, phase, fresh=fresh, now=now)
    serving = serving_count(observed, desired)
    effect = effect_of(observed, desired, None if fresh else before.effect)
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
        rollback_to=weights.spec.rollback_to if _is_going_back(weights, phase) else None,
        started_at=started_at,
        phase_started_at=now if moved else before.phase_started_at,
        workers=_workers(observed, rollout, before.workers),
        workers_applied=f"{serving}/{observed.spec.replicas}",
        laggards=laggards_of(observed, rollout.desired, before.laggards),
        timings=timings,
        effect=effect,
        canary=rollout.step.verdict or before.canary,
        superseded_versions=before.superseded_versions + _was_overtaken(before, rollout),
        history=_history(weights, rollout, phase, timings, started_at, now=now),
        conditions=_conditions(observed, weights, rollout, phase, serving, warning_of(effect), now),
    )


def _phase(rollout: RolloutPlan) -> RolloutPhase:
    if rollout.halted:
        return RolloutPhase.HALTED
    if rollout.suspended:
        return RolloutPhase.SUSPENDED
    if not same_weights(rollout.step.goal, rollout.desired):
        # The way out of something else comes first: this one has not begun.
        return RolloutPhase.PENDING
    return rollout.step.phase


def refused_status(
    weights: WeightsView | UnreadWeights, reason: ConditionReason, message: str, *, now: datetime
) -> WeightsStatus:
    """Status of a WeightVersion that steers nothing: no such fleet, or it is not the first one."""
    told = ((ConditionType.READY, False), (ConditionType.PROGRESSING, False))
    return _idle_status(weights, (*told, (ConditionType.STALLED, True)), reason, message, now=now)


def awaiting_status(
    weights: WeightsView | UnreadWeights, reason: ConditionReason, message: str, *, now: datetime
) -> WeightsStatus:
    """Status of a WeightVersion that steers nothing yet: what it lacks may still come."""
    told = ((ConditionType.READY, False), (ConditionType.PROGRESSING, True))
    return _idle_status(weights, told, reason, message, now=now)


def is_given_up(weights: WeightsView | UnreadWeights, reason: ConditionReason) -> bool:
    """Whether the last status has called for attention for this reason already."""
    stalled = condition_of(weights.status.conditions, ConditionType.STALLED)
    return stalled is not None and stalled.reason is reason


def _idle_status(
    weights: WeightsView | UnreadWeights,
    told: tuple[tuple[ConditionType, bool], ...],
    reason: ConditionReason,
    message: str,
    *,
    now: datetime,
) -> WeightsStatus:
    before = weights.status
    return WeightsStatus(
        observed_generation=weights.generation,
        desired_version=weights.spec.version if isinstance(weights, WeightsView) else None,
        desired_run_id=weights.spec.run_id if isinstance(weights, WeightsView) else None,
        phase=RolloutPhase.PENDING,
        rollback_to=before.rollback_to,
        superseded_versions=before.superseded_versions,
        history=before.history,
        conditions=tuple(
            new_condition(
                before.conditions,
                kind,
                holds=holds,
                reason=reason,
                message=message,
                generation=weights.generation,
                now=now,
            )
            for kind, holds in told
        ),
    )


def _is_going_back(weights: WeightsView, phase: RolloutPhase) -> bool:
    return phase is not RolloutPhase.APPLIED and may_go_back(weights)


def _has_ended(before: WeightsStatus, started_at: datetime | None) -> bool:
    """Whether the rollout that began then stands in the history; what its workers do afterwards
    is no part of it.
    """
    begun = (before.desired_version, before.desired_run_id, started_at)
    return any((e.version, e.run_id, e.started_at) == begun for e in before.history)


def _was_overtaken(before: WeightsStatus, rollout: RolloutPlan) -> bool:
    begun = before.desired_version is not None and before.started_at is not None
    another = not before.is_about(rollout.desired.version, rollout.desired.run_id)
    return begun and another and not _has_ended(before, before.started_at)


def _workers(
    observed: FleetObserved, rollout: RolloutPlan, before: RolloutWorkers
) -> RolloutWorkers:
    live = [w for w in observed.workers if not w.pod.deleting]
    desired = rollout.desired
    return renewed(
        before,
        total=len(live),
        staged=sum(w.has_loaded(desired) or w.has_staged(desired) for w in live),
        paused=sum(w.standing is Standing.HELD for w in live),
        applied=sum(
            w.standing in {Standing.OPEN, Standing.HELD} and w.has_loaded(desired) for w in live
        ),
        failed=len(rollout.step.failed),
    )


def _timings(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    *,
    fresh: bool,
    now: datetime,
) -> RolloutTimings:
    if fresh:
        return RolloutTimings()
    before, watched = weights.status, weights.watched
    timings = before.timings
    if _has_ended(before, before.started_at):
        return timings
    if phase is not before.phase and before.phase in _TIMED and before.phase_started_at:
        field = _TIMED[before.phase]
        spent = getattr(timings, field) + watched.seconds_since(before.phase_started_at, now)
        timings = timings.model_copy(update={field: round(spent, 3)})
    if phase is RolloutPhase.APPLIED and before.phase is not phase and before.started_at:
        total = watched.seconds_since(before.started_at, now)
        pauses = [
            w.state.timings.paused_seconds or 0.0
            for w in observed.workers
            if w.state and w.state.timings and w.state.timings.version == rollout.desired.version
        ]
        timings = timings.model_copy(
            update={
                "total_seconds": round(total, 3),
                "max_worker_pause_seconds": round(max(pauses, default=0.0), 3),
            }
        )
    return timings


def _history(
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    timings: RolloutTimings,
    started_at: datetime,
    *,
    now: datetime,
) -> tuple[HistoryEntry, ...]:
    before, watched = weights.status, weights.watched
    entries = list(before.history)
    if _was_overtaken(before, rollout) and before.started_at:
        overtaken = HistoryEntry(
            version=str(before.desired_version),
            run_id=before.desired_run_id,
            result="Superseded",
            started_at=before.started_at,
            total_seconds=round(watched.seconds_since(before.started_at, now), 3),
            reason=f"version {rollout.desired.label} was asked for",
        )
        entries.insert(0, overtaken)
    version, run_id = rollout.desired.version, rollout.desired.run_id
    known = {(e.version, e.run_id, e.started_at) for e in entries}
    recorded = (version, run_id, started_at) in known
    if phase is RolloutPhase.APPLIED and not recorded:
        done = HistoryEntry(
            version=version,
            run_id=run_id,
            result="Applied",
            started_at=started_at,
            total_seconds=timings.total_seconds,
            max_worker_pause_seconds=timings.max_worker_pause_seconds,
        )
        entries.insert(0, done)
    if phase is RolloutPhase.HALTED and not recorded and rollout.step.problem:
        halted = HistoryEntry(
            version=version,
            run_id=run_id,
            result="Halted",
            started_at=started_at,
            total_seconds=round(watched.seconds_since(started_at, now), 3),
            reason=str(rollout.step.problem.reason),
        )
        entries.insert(0, halted)
    return tuple(entries[:MAX_HISTORY])


def _conditions(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    serving: int,
    unchanged: str,
    now: datetime,
) -> tuple[Condition, ...]:
    replicas = observed.spec.replicas
    share = counted_of(serving, replicas, "worker", "serves", "serve")
    told = f"{share} version {rollout.desired.label}"
    made = [
        (ConditionType.READY, *_ready(observed, rollout, phase, serving, told)),
        (ConditionType.PROGRESSING, *_progressing(rollout, phase, told)),
    ]
    if (stalled := _stalled(weights, rollout)) is not None:
        made.append((ConditionType.STALLED, True, *stalled))
    if unchanged:
        reason = ConditionReason.NO_PARAMETER_CHANGED
        made.append((ConditionType.WEIGHTS_UNCHANGED, True, reason, unchanged))
    return tuple(
        new_condition(
            weights.status.conditions,
            kind,
            holds=holds,
            reason=reason,
            message=message,
            generation=weights.generation,
            now=now,
        )
        for kind, holds, reason, message in made
    )


def _ready(
    observed: FleetObserved, rollout: RolloutPlan, phase: RolloutPhase, serving: int, told: str
) -> tuple[bool, ConditionReason, str]:
    problem, replicas = rollout.step.problem, observed.spec.replicas
    unseen = unseen_count(observed)
    obstacles = (
        (replicas == 0, ConditionReason.NO_WORKERS, "the fleet has 0 replicas"),
        (phase is RolloutPhase.HALTED, ConditionReason.HALTED, told),
        (
            phase is RolloutPhase.SUSPENDED,
            ConditionReason.SUSPENDED,
            f"{told}; set spec.suspend: false to go on",
        ),
        (problem, problem.reason if problem else ConditionReason.HALTED, told),
    )
    for holds, reason, message in obstacles:
        if holds:
            return False, reason, message
    if phase is RolloutPhase.APPLIED and serving == replicas and unseen:
        to_come = f"{told}; {unseen} {agree(unseen, 'is', 'are')} not in the Service yet"
        return False, ConditionReason.WAITING_FOR_WORKERS, to_come
    if phase is RolloutPhase.APPLIED and serving == replicas:
        return True, ConditionReason.ALL_WORKERS_SERVING, told
    if rollout.step.awaits_source:
        return False, ConditionReason.WAITING_FOR_CHECKPOINT, f"{told}; {rollout.step.note}"
    if phase in {RolloutPhase.APPLIED, RolloutPhase.PENDING}:
        return False, ConditionReason.WAITING_FOR_WORKERS, told
    return False, ConditionReason.ROLLING_OUT, f"{told}; {rollout.step.note}"


def _progressing(
    rollout: RolloutPlan, phase: RolloutPhase, told: str
) -> tuple[bool, ConditionReason, str]:
    if phase is RolloutPhase.HALTED:
        return False, ConditionReason.HALTED, told
    if phase is RolloutPhase.SUSPENDED:
        return False, ConditionReason.SUSPENDED, told
    if phase is RolloutPhase.APPLIED:
        return False, ConditionReason.UP_TO_DATE, told
    step = rollout.step
    if phase is RolloutPhase.PENDING and not step.awaits_source:
        return True, ConditionReason.WAITING_FOR_WORKERS, told
    if step.problem is not None:
        return False, step.problem.reason, step.problem.message
    waits = ConditionReason.WAITING_FOR_CHECKPOINT
    return True, waits if step.awaits_source else ConditionReason(phase.value), step.note


def _stalled(weights: WeightsView, rollout: RolloutPlan) -> tuple[ConditionReason, str] | None:
    problem = rollout.step.problem
    if rollout.halted and not (problem is not None and problem.halt):
        # Why it was given up stays; what hinders workers on the way back is the fleet's to report.
        before = condition_of(weights.status.conditions, ConditionType.STALLED)
        if weights.status.phase is RolloutPhase.HALTED and before is not None:
            return before.reason, before.message
        if problem is None:
            return ConditionReason.HALTED, "the version was given up; publish another one"
    return (problem.reason, problem.message) if problem is not None else None
