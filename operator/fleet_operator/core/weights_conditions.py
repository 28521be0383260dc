"""The conditions of a WeightVersion that steers its fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from fleet_operator.core.condition_rows import Made, Row, conditions_of, first_of
from fleet_operator.core.fleet_status import ROLLING_REASONS, unseen_workers, with_waits
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.pod_problems import Missing, missing_workers
from fleet_operator.core.problems import alone
from fleet_operator.core.remarks import remarks_of
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.counts import counted_of
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionReason, ConditionType
from rlfleet_resources.weights_status import RolloutPhase

_Missing = tuple[bool, ConditionReason, str]


def weights_conditions(
    observed: FleetObserved,
    weights: WeightsView,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    serving: int,
    unchanged: Sequence[Row],
    fleet: FleetStatus,
    now: datetime,
) -> tuple[Condition, ...]:
    """Returns all conditions. `unchanged`: the rows of the warning that the weights have no effect.

    `fleet`: the status of the fleet, which knows why workers are missing.
    """
    replicas = observed.spec.replicas
    share = counted_of(serving, replicas, "worker", "serves", "serve")
    summary = f"{share} version {rollout.desired.label}"
    before = weights.status.conditions
    remarks = remarks_of(observed, rollout.desired, before)
    stalled = _stalled(weights, rollout)
    cause = stalled[3] if stalled is not None else summary
    missing = missing_workers(observed)
    ready = _missing(missing, rollout, summary, fleet, ConditionType.READY)
    progressing = _missing(missing, rollout, summary, fleet, ConditionType.PROGRESSING)
    unseen = unseen_workers(observed, missing, summary)
    made = (
        _ready(observed, rollout, phase, serving, summary, cause, unseen, ready),
        _progressing(rollout, phase, summary, progressing),
        stalled,
        first_of(ConditionType.WEIGHTS_UNCHANGED, *unchanged),
        first_of(ConditionType.REMARKS, (remarks, True, ConditionReason.IGNORED_OR_CAST, remarks)),
    )
    return conditions_of(made, before, generation=weights.generation, now=now)


def _ready(
    observed: FleetObserved,
    rollout: RolloutPlan,
    phase: RolloutPhase,
    serving: int,
    summary: str,
    cause: str,
    unseen: Row,
    missing: _Missing,
) -> Made | None:
    """`cause`: the message of `Stalled`, since `kubectl get` shows that of `Ready`."""
    problem, replicas, step = rollout.step.problem, observed.spec.replicas, rollout.step
    because = problem.reason if problem else ConditionReason.HALTED
    held = f"{summary}; set spec.suspend to false to continue"
    all_serve = phase is RolloutPhase.APPLIED and serving == replicas
    waits = phase in {RolloutPhase.APPLIED, RolloutPhase.PENDING}
    noted = f"{summary}; {step.told}"
    return first_of(
        ConditionType.READY,
        (replicas == 0, False, ConditionReason.NO_WORKERS, "the fleet has 0 replicas"),
        (phase is RolloutPhase.HALTED, False, ConditionReason.HALTED, cause),
        (phase is RolloutPhase.SUSPENDED, False, ConditionReason.SUSPENDED, held),
        (problem, False, because, cause),
        (all_serve and unseen[0], *unseen[1:]),
        (all_serve, True, ConditionReason.ALL_WORKERS_SERVING, summary),
        (step.awaits_source, False, ConditionReason.WAITING_FOR_CHECKPOINT, noted),
        (waits, False, *missing[1:]),
        (True, False, ConditionReason.ROLLING_OUT, noted),
    )


def _progressing(
    rollout: RolloutPlan, phase: RolloutPhase, summary: str, missing: _Missing
) -> Made | None:
    step, problem = rollout.step, rollout.step.problem
    because = problem.reason if problem else ConditionReason.HALTED
    message = problem.message if problem else ""
    pending = phase is RolloutPhase.PENDING and not step.awaits_source
    rolling = ROLLING_REASONS.get(phase, ConditionReason.ROLLING_OUT)
    return first_of(
        ConditionType.PROGRESSING,
        (phase is RolloutPhase.HALTED, False, ConditionReason.HALTED, summary),
        (phase is RolloutPhase.SUSPENDED, False, ConditionReason.SUSPENDED, summary),
        (phase is RolloutPhase.APPLIED, False, ConditionReason.UP_TO_DATE, summary),
        (pending, *missing),
        (problem, False, because, message),
        (step.awaits_source, True, ConditionReason.WAITING_FOR_CHECKPOINT, step.told),
        (True, True, rolling, step.told),
    )


_OF_WORKERS = frozenset(
    {
        ConditionReason.INVALID_SPEC,
        ConditionReason.PROTOCOL_MISMATCH,
        ConditionReason.FAILURE_BUDGET_EXCEEDED,
        ConditionReason.WORKERS_FAILING,
    }
)
"""Reasons of a fleet for missing workers. Its others are about its base weights, or are waits that a version has, too."""


def _missing(
    missing: Missing, rollout: RolloutPlan, summary: str, fleet: FleetStatus, kind: ConditionType
) -> _Missing:
    """Returns whether workers are on their way, and why they are missing. Only the fleet knows the failures of its
    pods, in its condition of this type.
    """
    found = condition_of(fleet.conditions, kind)
    if found is not None and found.reason in _OF_WORKERS:
        return found.status == "True", ConditionReason(found.reason), found.message
    return True, missing.reason, with_waits(summary, missing, rollout)


def _stalled(weights: WeightsView, rollout: RolloutPlan) -> Made | None:
    problem, stalled = rollout.step.problem, ConditionType.STALLED
    because = problem.reason if problem else ConditionReason.HALTED
    message = problem.message if problem else "the version is abandoned; publish another one"
    # The reason for the halt stays. The fleet reports workers that cannot roll back.
    halted_before = rollout.halted and not (problem is not None and problem.halt)
    before = condition_of(weights.status.conditions, stalled)
    if halted_before and weights.status.phase is RolloutPhase.HALTED and before is not None:
        return stalled, True, before.reason, alone(before).message
    return first_of(stalled, (halted_before or problem, True, because, message))
