"""What all strategies need: who holds the bytes, who failed, who is late, and the joiners."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Quarantine, WorkerCall
from fleet_operator.core.identity import WeightsId, fold, same_weights
from fleet_operator.core.joiners import Admission, join
from fleet_operator.core.observed import Target, WorkerView
from fleet_operator.core.problems import problem_of
from fleet_operator.core.step import Problem, RolloutView, Step

Actions = tuple[WorkerCall | Quarantine, ...]


def has_bytes(worker: WorkerView, goal: Target) -> bool:
    """Whether a worker holds the goal's bytes, or is putting them into its engine."""
    return worker.has_staged(goal) or worker.is_loading(goal)


def loaded_beside(workers: Sequence[WorkerView], applied: Target) -> list[WeightsId]:
    """The different weights that workers have in their engines, but for the applied ones."""
    loaded = set(fold({w.loaded for w in workers}))
    return [w for w in loaded if w is not None and not same_weights(w, applied)]


def source_of(worker: WorkerView, view: RolloutView) -> WeightSource:
    """Where the weights of a worker came from, by its own account."""
    told = worker.state.source if worker.state else None
    return from_protocol(told) if told is not None else view.target.source


def broken(view: RolloutView, goal: Target) -> list[WorkerView]:
    """Workers that a load of the goal has closed: members no more, but failures of this rollout."""
    return [
        j
        for j in view.joiners
        if (failure := view.failure_of(j, goal)) and j.state and failure == j.state.load_failure
    ]


def without(workers: Iterable[WorkerView], others: Iterable[WorkerView]) -> list[WorkerView]:
    """The workers that are not among the others. By uid: comparing the records themselves, each
    with each, takes seconds for a thousand workers.
    """
    uids = {o.pod.uid for o in others}
    return [w for w in workers if w.pod.uid not in uids]


def late(
    view: RolloutView, phase: RolloutPhase, limit_seconds: float, workers: Sequence[WorkerView]
) -> list[WorkerView]:
    """The workers, if the recorded phase is this one and has lasted longer than allowed."""
    if view.phase is not phase or view.phase_seconds <= limit_seconds:
        return []
    return list(workers)


def held_up(view: RolloutView, by: Sequence[WorkerView]) -> list[WorkerView]:
    """The workers, if others have been holding their requests for them as long as a rollout and the
    way back may take.

    Phases begin anew with every newer version, and whenever an answer gets lost; pauses do not.
    """
    return list(by) if is_held_too_long(view) else []


def is_held_too_long(view: RolloutView) -> bool:
    """Whether a worker has been holding its requests as long as a rollout and the way back may take."""
    longest = max((m.held_seconds for m in view.held), default=0.0)
    return longest > view.settings.longest_hold_seconds


def renew(view: RolloutView) -> Actions:
    """Renew the pauses that would end soon. Of several calls to a worker the last one counts."""
    return tuple(
        calls.pause(m, view.settings, reason="the rollout needs longer than the pause lease")
        for m in view.held
        if calls.needs_renewal(m)
    )


def over_budget(
    view: RolloutView,
    goal: Target,
    failed: list[WorkerView],
    phase: RolloutPhase,
    *,
    halt: bool,
    among: Sequence[WorkerView] = (),
) -> Problem | None:
    """The problem, if more workers failed to take the target than may, or if nobody else is left.

    `among`: those who could take it; the members, or else the joiners, if nobody is named.

    The way back, or out of an overtaken rollout, is not given up: who fails there is fenced. Nor
    is a version that the fleet serves already: who comes late to it is left behind.
    """
    candidates = among or view.members or view.joiners
    others = {w.pod.uid for w in candidates} - {f.pod.uid for f in failed}
    if not failed or (others and len(failed) <= view.may_fail):
        return None
    served = same_weights(goal, view.applied)
    if not same_weights(goal, view.target) or view.halted or served:
        return None
    return problem_of(failed, goal, phase, may_fail=view.may_fail, halt=halt)


def with_joiners(
    view: RolloutView, taken: Step, admission: Admission, *, but: AbstractSet[str] = frozenset()
) -> Step:
    """The step, with the calls to the joiners, but for some uids."""
    joiners = tuple(j for j in view.joiners if j.pod.uid not in but)
    admission = replace(admission, adapters=view.adapters, may_fail=view.may_fail)
    joining = join(joiners, admission, view.settings)
    return replace(
        taken,
        actions=taken.actions + joining.actions,
        problem=taken.problem or joining.problem,
        requeue_after_seconds=joining.requeue_after_seconds,
    )
