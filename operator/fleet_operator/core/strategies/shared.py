"""Parts that all strategies share: failed workers, and the calls to members and to joining workers."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.advance import Mode, Target, advance
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import NO_WORKERS, Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.joining import Admission, join
from fleet_operator.core.messages import problem_of
from fleet_operator.core.pod_actions import Quarantine
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.worker_failures import has_failed_to_load
from fleet_operator.core.worker_view import Standing, WorkerView
from rlfleet_resources.weights_status import RolloutPhase

Actions = tuple[WorkerCall | Quarantine, ...]


def refused_by(view: RolloutView, goal: Checkpoint, workers: Workers) -> list[WorkerView]:
    """The workers that could not take the goal in this attempt."""
    return [w for w in workers.where(lambda f: f.refuses) if view.failure_of(w, goal)]


def begun_by(view: RolloutView, goal: Checkpoint) -> Workers:
    """The members whose clients wait while they load the goal, or until others have it, too."""
    return view.members.where(
        lambda f: (
            f.is_loading(goal)
            or (f.standing is Standing.HELD and f.has_loaded(goal) and not f.paused_unchanged)
        )
    )


def serves(view: RolloutView, weights: Checkpoint) -> bool:
    """Whether clients get these weights."""
    return view.members.any(lambda f: f.standing is Standing.OPEN and f.has_loaded(weights))


def closed_by_load(view: RolloutView, goal: Checkpoint) -> list[WorkerView]:
    """Workers whose latch closed because they failed to load the goal.

    They are not members any more, and count as failures of this rollout.
    """
    return failed_to_load(view, goal, view.joining.where(lambda f: f.refuses))


def failed_to_load(
    view: RolloutView, goal: Checkpoint, workers: Iterable[WorkerView]
) -> list[WorkerView]:
    """Those of the workers whose engine refused the goal in this attempt. Reading the files again does not repair
    that, also if it fails in another way.
    """
    seconds = view.rollout_seconds
    return [w for w in workers if has_failed_to_load(w, goal, within_seconds=seconds)]


def without(workers: Collection[WorkerView], others: Collection[WorkerView]) -> Workers:
    """The workers that are not among the others, by uid.

    Comparing the records of a thousand workers pair by pair takes seconds.
    """
    if not workers or not others:
        return Workers.of(workers)
    if others is workers:
        return NO_WORKERS
    uids = {o.pod.uid for o in others}
    return Workers([w for w in workers if w.pod.uid not in uids])


def advanced(
    view: RolloutView,
    workers: Iterable[WorkerView],
    weights: Checkpoint,
    mode: Mode,
    reason: str,
    *,
    renews: bool = True,
) -> tuple[WorkerCall, ...]:
    """The next calls to workers with this target. Refusals of earlier attempts do not count."""
    target, seconds = Target(weights, mode, reason), view.rollout_seconds
    workers = Workers.of(workers)
    return advance(workers, target, view.settings, within_seconds=seconds, renews=renews)


def may_resume(view: RolloutView) -> Workers:
    """The held members that may serve the applied version meanwhile. None while versions must not mix and a
    member may generate another version.
    """
    elsewhere = view.members.where(lambda f: not f.has_loaded(view.applied))
    if view.forbids_mixing and elsewhere.any(lambda f: f.standing is not Standing.HELD):
        return NO_WORKERS
    return view.held.where(lambda f: f.has_loaded(view.applied) and not f.operation)


def over_budget(
    view: RolloutView,
    goal: Checkpoint,
    failed: list[WorkerView],
    phase: RolloutPhase,
    *,
    halt: bool,
    among: Sequence[WorkerView] = (),
) -> RolloutProblem | None:
    """The problem that more workers failed than `maxFailures` allows, or that no other worker is left.

    `among`: the workers that could load the goal; by default the members, or else the workers that
    join. A rollback is never abandoned, nor the rest of a superseded rollout: a worker that fails
    there is fenced. A version that the fleet serves already is not abandoned either.
    """
    if not failed:
        return None
    candidates = among or view.members or view.joining
    others = {w.pod.uid for w in candidates} - {f.pod.uid for f in failed}
    if others and len(failed) <= view.may_fail:
        return None
    served = same_weights(goal, view.applied)
    if not same_weights(goal, view.desired) or view.halted or view.is_superseded or served:
        return None
    goes_back = halt and view.settings.on_failure == "Rollback"
    serve = not goes_back and view.members.any(
        lambda f: f.standing is Standing.OPEN and f.has_loaded(goal)
    )
    return problem_of(failed, goal, phase, may_fail=view.may_fail, halt=halt, others_serve=serve)


def with_joiners(
    view: RolloutView, taken: Step, admission: Admission, *, but: AbstractSet[str] = frozenset()
) -> Step:
    """The step, with the calls to the joining workers.

    `but`: uids of joining workers that get no call here.
    """
    joining = view.joining
    if but:
        joining = Workers([j for j in joining if j.pod.uid not in but])
    if not joining:
        return taken
    admission = replace(admission, lora_goals=view.lora_goals, may_fail=view.may_fail)
    joins = join(joining, admission, view.settings)
    return replace(
        taken,
        actions=taken.actions + joins.actions,
        problem=taken.problem or joins.problem,
        requeue_after_seconds=joins.requeue_after_seconds,
    )
