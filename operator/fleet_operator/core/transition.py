"""The operation in progress, as the status of the fleet records it: from which weights to which, and how.

It is stored before the first call that takes a worker away from its clients, and kept until no worker is
away. So every leader knows to what end workers are held, and another strategy or version waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import datetime

from fleet_operator.core.actions import Admit, Apply, Pause, Resume
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts
from fleet_operator.core.identity import Named, same_weights
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.fleet_status import FleetStatus, RecordedWeights, Transition
from rlfleet_resources.weights_status import RolloutPhase

_SWAPS = frozenset({"pause", "load", "apply", "resume"})


def open_transition(observed: FleetObserved) -> Transition | None:
    """The barrier that the fleet is behind: a worker that answers is held for it. Swaps end by themselves.

    A silent worker keeps the record, but holds up no other version: it may be silent for long.
    """
    last = observed.status.transition
    is_barrier = last is not None and last.strategy == "Synchronized"
    answering = observed.workers.where(lambda f: f.standing is not Standing.UNKNOWN)
    return last if is_barrier and answering.any(_is_away) else None


def transition_after(
    step: Step, observed: FleetObserved, view: RolloutView, *, halted: bool, now: datetime
) -> tuple[Transition | None, bool]:
    """The operation in progress with the calls of this step, and whether it is stored. A fleet that a trainer
    updates needs none.
    """
    if observed.is_external:
        return None, True
    record = _next_record(step, observed, view, halted=halted, now=now)
    return record, record is not None and observed.stored_status.transition == record


def _next_record(
    step: Step, observed: FleetObserved, view: RolloutView, *, halted: bool, now: datetime
) -> Transition | None:
    last, held = observed.status.transition, {w.pod.uid for w in view.held}
    begins = _is_near(step, view) or any(takes_away(a, held, (view.applied,)) for a in step.actions)
    if not begins:
        if last is None or _is_over(last, view):
            return None
        back = last.back or halted
        return last.model_copy(update={"back": back}) if back else last
    return _transition_of(step, last, view, now)


def named_in(status: FleetStatus) -> tuple[Checkpoint, ...]:
    """Returns the weights that a status of the fleet names: the applied ones, and those that the fleet goes to."""
    current = status.transition
    goal = current if current is not None and not current.back else None
    return tuple(Checkpoint.recorded(w) for w in (status.applied, goal) if w is not None)


def takes_away(action: object, held: AbstractSet[str], named: Iterable[Named]) -> bool:
    """Whether a call takes a worker from its clients, or opens it at other weights than the named ones."""
    match action:
        case Resume() | Admit():
            return not any(same_weights(action, weights) for weights in named)
        case Pause():
            return action.pod_uid not in held
    return isinstance(action, Apply)


def _is_near(step: Step, view: RolloutView) -> bool:
    """Whether workers stage what they go to next. It is recorded then, so that the write delays no swap."""
    if step.phase is not RolloutPhase.STAGING or same_weights(step.goal, view.applied):
        return False
    current = view.transition
    return current is None or same_weights(step.goal, Checkpoint.recorded(current))


def _transition_of(
    step: Step, last: Transition | None, view: RolloutView, now: datetime
) -> Transition:
    """The transition of which this is the next step. `last`: the one in the status."""
    goal = step.goal
    back = same_weights(goal, view.applied) and not same_weights(view.desired, view.applied)
    if back:
        goal = view.desired if last is None else Checkpoint.recorded(last)
    if last is None or not same_weights(Checkpoint.recorded(last), goal):
        base = RecordedWeights(**view.applied.record())
        last = Transition(**goal.record(), strategy=view.strategy, base=base, started_at=now)
    return last.model_copy(update={**goal.record(), "strategy": view.strategy, "back": back})


def _is_over(last: Transition, view: RolloutView) -> bool:
    """Whether no worker is away, and the fleet has recorded that it serves the weights, if workers do. A
    leader may end before it does.
    """
    goal = Checkpoint.recorded(last)
    reached = same_weights(goal, view.applied) or not view.workers.any(lambda f: f.has_loaded(goal))
    return reached and not view.workers.any(_is_away)


def _is_away(worker: Facts) -> bool:
    if worker.standing is Standing.OPEN:
        return any(
            work is not None and work.kind in _SWAPS for work in (worker.operation, worker.call)
        )
    return worker.standing in {Standing.HELD, Standing.UNKNOWN}
