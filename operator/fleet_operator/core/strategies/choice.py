"""Chooses the strategy: that of a transition with a barrier (Synchronized), which ends first, or that of the spec."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import same_weights
from fleet_operator.core.strategies import canary, in_flight, rolling, synchronized
from fleet_operator.core.strategies.base import RolloutView, Step, Strategy
from fleet_operator.core.strategies.shared import begun_by, serves
from rlfleet_resources.fleet_status import TransitionStrategy
from rlfleet_resources.weights_status import RolloutPhase


def _named(strategy: TransitionStrategy) -> Strategy:
    match strategy:
        case "Synchronized":
            return synchronized.step
        case "InFlight":
            return in_flight.step
        case "Rolling":
            return rolling.step


def strategy_of(view: RolloutView) -> Strategy:
    """Returns what decides the next step of a view like this one."""
    strategy, judges = _named(view.strategy), view.settings.strategy == "Canary"
    current = view.transition
    if current is None:
        return canary.then(strategy) if judges else strategy
    goal, back = Checkpoint.recorded(current), current.back

    def ending(view: RolloutView) -> Step:
        superseded = not same_weights(goal, view.desired)
        if judges and back:
            # Canaries do not wait for workers that go back.
            step, held = strategy(replace(view, halted=True)), {w.pod.uid for w in view.held}
            judged = canary.then(strategy)(view)
            returning = [a for a in step.actions if a.pod_uid in held]
            judging = [a for a in judged.actions if a.pod_uid not in held]
            return replace(judged, actions=(*judging, *returning))
        if superseded and back and serves(view, view.applied):
            return strategy(view)
        gives_up = view.halted or back
        if superseded and judges:
            # Workers that are away do not wait for the verdict on the newer version.
            view = replace(view, desired=goal, is_superseded=True)
        if judges and not canary.has_passed(view):
            gives_up = gives_up or not begun_by(view, goal)
        step = strategy(replace(view, halted=gives_up))
        ended = step.phase is RolloutPhase.APPLIED and superseded
        return replace(step, phase=RolloutPhase.PENDING) if ended else step

    return ending
