"""Parts that all strategies share: failed and late workers, pauses, and the calls to joining workers."""

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
    return failed_to_load(view, goal, refused_by(view, goal, view.joining))


def failed_to_load(
    view: RolloutView, goal: Checkpoint, refused: Iterable[WorkerView]
) -> list[WorkerView]:
    """Those of the workers whose engine refused the goal. Reading the files again does not repair that, so
    it is not tried again in this attempt.
    """
    return [w for w in refused if w.state and w.state.load_failure == view.failure_of(w, goal)]


def without(workers: Iterable[WorkerView], others: Collection[WorkerView]) -> Workers:
    """The workers that are not among the others, by uid.

    Comparing the records of a thousand workers pair by pair takes seconds.
    """
    if not others:
        return Workers.of(workers)
    uids = {o.pod.uid for o in others}
    return Workers([w for w in workers if w.pod.uid not in uids])


def late(
    view: RolloutView, phase: RolloutPhase, limit_seconds: float, workers: Sequence[WorkerView]
) -> list[WorkerView]:
    """The workers, if the recorded phase is this one and has lasted longer than allowed."""
    if view.phase is not phase or view.phase_seconds <= limit_seconds:
        return []
    return list(workers)


def late_to_stage(
    view: RolloutView, goal: Checkpoint, waiting: Sequence[WorkerView]
) -> list[WorkerView]:
    """The workers that should have staged the goal by now.

    Once the phase has lasted as long as all groups of `maxStaging` may take, these are all workers,
    except for those that joined or began to stage within one timeout. One timeout later these are late,
    too: a worker that restarts in each attempt would never be. Before that, these are the workers that
    stage, or are silent, for longer than one timeout.
    """
    limit = float(view.settings.timeouts.stage_seconds)
    if not late(view, RolloutPhase.STAGING, limit, waiting):
        return []
    all_seconds = view.staging_seconds()
    began = [w for w in waiting if not _began_lately(w, goal, limit)]
    overdue = late(view, RolloutPhase.STAGING, all_seconds + limit, waiting)
    overdue = overdue or late(view, RolloutPhase.STAGING, all_seconds, began)
    return overdue or late(
        view, RolloutPhase.STAGING, limit, [w for w in waiting if _stages_longer(w, goal, limit)]
    )


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


def _stages_longer(worker: WorkerView, goal: Checkpoint, limit_seconds: float) -> bool:
    staging_seconds = worker.seconds_at("stage", goal)
    return (worker.silent_seconds if staging_seconds is None else staging_seconds) > limit_seconds


def _began_lately(worker: WorkerView, goal: Checkpoint, limit_seconds: float) -> bool:
    """Whether a worker that answers has staged for no longer than this, or has run for no longer."""
    seconds = worker.seconds_at("stage", goal)
    if seconds is None and worker.state is not None and not worker.silent_seconds:
        seconds = worker.state.uptime_seconds
    return seconds is not None and seconds <= limit_seconds


def blocking(
    view: RolloutView, by: Sequence[WorkerView], *, is_timed: bool = False
) -> list[WorkerView]:
    """The workers, if other workers stay paused for them longer than a rollout and a rollback may
    take; otherwise none.

    A phase starts again with each newer version, after each lost answer, and with each leader. A pause
    does not. `is_timed`: their phase has a timeout. They may have become ready
    for the goal only now, so they get the time of one more rollout.
    """
    longest = max((m.held_seconds for m in view.held), default=0.0)
    return list(by) if longest > _longest_hold_seconds(view, is_timed=is_timed) else []


def held_by_work(view: RolloutView, *, is_timed: bool = False) -> list[WorkerView]:
    """The held workers that still load, or resume, once their pause lasts longer than `blocking` allows.

    Their pauses are renewed until the work ends, so a load that hangs needs an end here. The pause of a
    swap is not renewed: it ends by itself.
    """
    limit = _longest_hold_seconds(view, is_timed=is_timed)
    work = view.held.where(lambda f: bool(f.operation) and not f.is_doing("apply"))
    return [m for m in work if m.held_seconds > limit]


def _longest_hold_seconds(view: RolloutView, *, is_timed: bool) -> float:
    more_seconds = view.settings.hold_seconds if is_timed else 0.0
    return view.settings.longest_hold_seconds + more_seconds


def has_timeout(view: RolloutView, goal: Checkpoint) -> bool:
    """Whether the recorded phase is about the way to the goal, so that its timeout applies. In a rollback
    and in a superseded rollout it is about another version. Without a rollout it is about none.
    """
    others = view.halted or view.is_superseded or same_weights(goal, view.applied)
    return same_weights(goal, view.desired) and not others


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
    return problem_of(failed, goal, phase, may_fail=view.may_fail, halt=halt)


def with_joiners(
    view: RolloutView, taken: Step, admission: Admission, *, but: AbstractSet[str] = frozenset()
) -> Step:
    """The step, with the calls to the joining workers.

    `but`: uids of joining workers that get no call here.
    """
    joining = tuple(j for j in view.joining if j.pod.uid not in but)
    admission = replace(admission, lora_goals=view.lora_goals, may_fail=view.may_fail)
    joins = join(joining, admission, view.settings)
    return replace(
        taken,
        actions=taken.actions + joins.actions,
        problem=taken.problem or joins.problem,
        requeue_after_seconds=joins.requeue_after_seconds,
    )
