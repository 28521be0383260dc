"""Which weights a fleet should serve now, and the next step there.

`plan_rollout(observed, now)` has no memory: desired comes from the WeightVersion, applied from the
workers themselves while they speak with one voice, else from the fleet's status. What cannot be
read off the workers stands in the WeightVersion's status: since when the phase lasts, and that a
generation was halted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.applied import applied_of, opened_by
from fleet_operator.core.observed import (
    FleetObserved,
    Standing,
    Target,
    WeightsView,
    WorkerView,
)
from fleet_operator.core.step import RolloutView, Step, Strategy
from fleet_operator.core.strategies import in_flight, rolling, synchronized

STRATEGIES: Mapping[str, Strategy] = {
    "Synchronized": synchronized.step,
    "InFlight": in_flight.step,
    "Rolling": rolling.step,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPlan:
    """The step that a fleet's rollout takes now.

    Fields:
        desired: what the trainer wants, or the applied weights if nobody wants anything.
        applied: what the fleet served last with one voice; joiners come in at these.
        serving: the version that every admitted worker serves right now; None while they differ
            or nobody serves.
        halted: the desired version was given up in this generation.
    """

    desired: Target
    applied: Target
    serving: str | None
    halted: bool
    step: Step


def plan_rollout(observed: FleetObserved, *, now: datetime) -> RolloutPlan:
    """Decide the next step of the fleet's rollout."""
    members = tuple(w for w in observed.workers if _is_member(w))
    joiners = tuple(w for w in observed.workers if w.standing is Standing.CLOSED)
    weights = observed.base_weights
    wanted = desired_of(weights) if weights else None
    strategy = STRATEGIES[observed.spec.rollout.strategy]
    applied = applied_of(observed, members, wanted, one_voice=strategy is synchronized.step)
    desired = wanted or applied
    halted = weights is not None and is_halted(weights)
    view = RolloutView(
        target=desired,
        applied=applied,
        halted=halted,
        settings=observed.spec.rollout,
        members=members,
        joiners=joiners,
        replicas=observed.spec.replicas,
        phase=_recorded_phase(weights, desired),
        phase_seconds=_phase_seconds(weights, now),
    )
    step = strategy(view)
    if step.problem is not None and step.problem.halt:
        # From the moment of the decision on the rollout works its way back.
        back = strategy(replace(view, halted=True))
        step = replace(back, problem=step.problem, failed=step.failed)
        halted = True
    return RolloutPlan(
        desired=desired,
        applied=opened_by(step, members, applied),
        serving=_serving(members, applied),
        halted=halted,
        step=step,
    )


def desired_of(weights: WeightsView) -> Target:
    """What a WeightVersion asks for, with the placeholder of its source filled in."""
    spec = weights.spec
    return Target(version=spec.version, source=spec.source.resolve(spec.version))


def is_halted(weights: WeightsView) -> bool:
    """Whether this very generation was given up."""
    status = weights.status
    return status.phase is RolloutPhase.HALTED and status.observed_generation == weights.generation


def _is_member(worker: WorkerView) -> bool:
    return worker.standing in {Standing.OPEN, Standing.HELD, Standing.UNKNOWN}


def _serving(members: tuple[WorkerView, ...], applied: Target) -> str | None:
    one_voice = bool(members) and all(m.version == applied.version for m in members)
    return applied.version if one_voice else None


def _recorded_phase(weights: WeightsView | None, desired: Target) -> RolloutPhase:
    if weights is None or weights.status.desired_version != desired.version:
        return RolloutPhase.PENDING
    return weights.status.phase


def _phase_seconds(weights: WeightsView | None, now: datetime) -> float:
    if weights is None or weights.status.phase_started_at is None:
        return 0
    return (now - weights.status.phase_started_at).total_seconds()
