"""The strategies by name. The one of a transition with a barrier (Synchronized) ends first; then that of the spec decides."""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import same_weights
from fleet_operator.core.percentages import at_most
from fleet_operator.core.strategies import canary, synchronized
from fleet_operator.core.strategies.base import RolloutView, Step, Strategy
from fleet_operator.core.strategies.gradual import step_towards
from fleet_operator.core.strategies.shared import begun_by, serves
from rlfleet_resources.fleet_status import TransitionStrategy
from rlfleet_resources.weights_status import RolloutPhase


def in_flight(view: RolloutView) -> Step:
    """InFlight: every worker swaps as soon as it has staged.

    For asynchronous training. The pause is the shortest, and two versions generate for a moment.
    """
    return step_towards(view, at_once=None)


def rolling(view: RolloutView) -> Step:
    """Rolling: groups of `maxUnavailable` workers swap, one group after the other.

    For fleets that must keep serving. Two versions generate during the whole rollout.
    """
    return step_towards(view, at_once=at_most(view.settings.max_unavailable, view.replicas))


def _named(strategy: TransitionStrategy) -> Strategy:
    match strategy:
        case "Synchronized":
            return synchronized.step
        case "InFlight":
            return in_flight
        case "Rolling":
            return rolling


def strategy_of(view: RolloutView) -> Strategy:
    """Returns what decides the next step of a view like this one."""
    strategy, judges = _named(view.strategy), view.settings.strategy == "Canary"
    current = view.transition
    if current is None:
        return canary.then(strategy) if judges else strategy
    goal, back = Checkpoint.recorded(current), current.back

    def ending(view: RolloutView) -> Step:
        superseded = not same_weights(goal, view.desired)
        if superseded and back and not judges and serves(view, view.applied):
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
