"""Which weights a fleet should serve now, and the next step there.

`plan_rollout(observed, now)` has no memory: desired comes from the WeightVersion, applied from the
workers themselves while they speak with one voice, else from the fleet's status. What cannot be
read off the workers stands in the WeightVersion's status: which phase it is, and that a generation
was halted. How long the phase has lasted is what this leader has seen of it (`Watched`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from fleet_operator.api.fleet import PinnedWeights, Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core.adapter_goals import goals_of
from fleet_operator.core.applied import applied_of, came_before, opened_by
from fleet_operator.core.awaiting import awaited, wait
from fleet_operator.core.observed import (
    FleetObserved,
    Standing,
    Target,
    WeightsView,
    WorkerView,
)
from fleet_operator.core.one_voice import expel_strays, keep_out
from fleet_operator.core.pins import Pins, pins_of
from fleet_operator.core.reuse import reuse_problem
from fleet_operator.core.rewind import rewind_problem
from fleet_operator.core.roots import roots_problem
from fleet_operator.core.step import Problem, RolloutView, Step, Strategy
from fleet_operator.core.strategies import canary, external, in_flight, rolling, synchronized

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
        suspended: the rollout is held back.
        pinned: what versions stand for, for the status.
        waits_for_pin: calls wait until this is stored.
    """

    desired: Target
    applied: Target
    serving: str | None
    halted: bool
    suspended: bool
    step: Step
    pinned: tuple[PinnedWeights, ...] = ()
    waits_for_pin: bool = False


def plan_rollout(observed: FleetObserved, *, now: datetime) -> RolloutPlan:
    """Decide the next step of the fleet's rollout."""
    weights = observed.base_weights
    wanted = weights.desired if weights else None
    pins = pins_of(observed, wanted)
    reuse = reuse_problem(wanted, observed, pins) if wanted else None
    if wanted is not None:
        wanted = replace(wanted, reused=True) if reuse else pins.resolved(wanted)
    view = _view(observed, weights, wanted, pins, now)
    strategy = external.step if observed.is_external else _strategy(view.settings)
    refused = reuse or _refusal(observed, weights, view)
    if refused is not None:
        step = replace(strategy(replace(view, target=view.applied)), problem=refused)
        return _plan(observed, view, pins, step, halted=False)
    step = _waiting(strategy(view), view)
    halted = view.halted
    if step.problem is not None and step.problem.halt:
        # From the moment of the decision on the rollout works its way back; nobody is late yet.
        back = strategy(replace(view, halted=True, phase=RolloutPhase.HALTED))
        step = replace(back, problem=step.problem, failed=step.failed, verdict=step.verdict)
        halted = True
    return _plan(observed, view, pins, step, halted=halted)


def _waiting(step: Step, view: RolloutView) -> Step:
    return wait(
        step,
        (*view.members, *view.joiners),
        view.settings,
        phase=view.phase,
        phase_seconds=view.phase_seconds,
    )


def _refusal(
    observed: FleetObserved, weights: WeightsView | None, view: RolloutView
) -> Problem | None:
    if weights is None:
        return None
    return rewind_problem(weights, view.applied) or roots_problem(view.target, observed)


def _strategy(settings: Rollout) -> Strategy:
    if settings.strategy == "Canary":
        return canary.then(STRATEGIES[settings.canary.then])
    return STRATEGIES[settings.strategy]


def _view(
    observed: FleetObserved,
    weights: WeightsView | None,
    wanted: Target | None,
    pins: Pins,
    now: datetime,
) -> RolloutView:
    members = tuple(w for w in observed.workers if _is_member(w))
    settings = observed.spec.rollout
    if weights is not None:
        settings = weights.spec.rollout.over(settings)
    last = settings.canary.then if settings.strategy == "Canary" else settings.strategy
    one_voice = last == "Synchronized" or observed.is_external
    applied = pins.resolved(applied_of(observed, members, wanted, one_voice=one_voice))
    if wanted is not None and not wanted.reused and not observed.is_external:
        seen = pins.of(wanted) is not None
        wanted = awaited(wanted, applied, observed.workers, seen=seen)
    return RolloutView(
        target=wanted or applied,
        applied=applied,
        halted=weights is not None and is_halted(weights),
        suspended=weights is not None and weights.spec.suspend,
        settings=settings,
        members=members,
        joiners=tuple(w for w in observed.workers if w.standing is Standing.CLOSED),
        one_voice=one_voice,
        replicas=observed.expected_workers,
        phase=_recorded_phase(weights, wanted),
        phase_seconds=weights.watched.phase_seconds if weights else 0,
        rollout_seconds=_rollout_seconds(weights, wanted, now),
        verdict=weights.status.canary if weights else None,
        adapters=goals_of(observed),
    )


def _plan(
    observed: FleetObserved, view: RolloutView, pins: Pins, step: Step, *, halted: bool
) -> RolloutPlan:
    desired = view.target
    if view.one_voice and not observed.is_external:
        step = keep_out(step, [w for w in observed.workers if w.may_reopen])
        loaded = {m.loaded for m in view.members} - {None}
        older = {w for w in loaded if w and came_before(observed, w, view.applied)}
        step = expel_strays(step, view, older=older)
    step = pins.expel_others(step, view.members, view.settings)
    step, waits = pins.gate(step, view.held)
    behind = any(not m.has_loaded(desired) for m in view.members)
    return RolloutPlan(
        desired=desired,
        applied=opened_by(step, view.members, view.applied),
        serving=_serving(view.members, view.applied),
        halted=halted,
        suspended=view.suspended and behind and not step.disturbed,
        step=step,
        pinned=pins.entries,
        waits_for_pin=waits,
    )


def is_halted(weights: WeightsView) -> bool:
    """Whether this very generation was given up, and nobody has asked to try it again."""
    status = weights.status
    spoken_of = (status.observed_generation, status.retried) == (weights.generation, weights.retry)
    return status.phase is RolloutPhase.HALTED and spoken_of


def _is_member(worker: WorkerView) -> bool:
    return worker.standing in {Standing.OPEN, Standing.HELD, Standing.UNKNOWN}


def _serving(members: tuple[WorkerView, ...], applied: Target) -> str | None:
    one_voice = bool(members) and all(m.has_loaded(applied) for m in members)
    return applied.version if one_voice else None


def _recorded_phase(weights: WeightsView | None, wanted: Target | None) -> RolloutPhase:
    if (
        weights is None
        or wanted is None
        or not weights.status.is_about(wanted.version, wanted.run_id)
    ):
        return RolloutPhase.PENDING
    return weights.status.phase


def _rollout_seconds(weights: WeightsView | None, wanted: Target | None, now: datetime) -> float:
    if weights is None or wanted is None:
        return math.inf
    status, watched = weights.status, weights.watched
    if not status.is_about(wanted.version, wanted.run_id) or status.retried != weights.retry:
        return 0
    if watched.saw_it_begin or status.started_at is None:
        return watched.attempt_seconds
    # What failed before this leader came counts, if it did by the clock of the one that began.
    return max(watched.seconds_since(status.started_at, now), watched.attempt_seconds)
