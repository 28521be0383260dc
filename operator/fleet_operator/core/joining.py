"""Brings joining workers to the version that the fleet serves, and admits them.

A joining worker is new, restarted, or was fenced, and its latch is closed. It started on the version
that was applied then, or on the model's own weights. It is admitted only at the version that the
strategy names, and only when the strategy allows it.

If its version is gone (trainers delete old checkpoints), the worker prepares the fallback and waits
until the fleet serves that. It does the same if the version came over a collective: no worker can read
such weights from files.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_calls, worker_failures
from fleet_operator.core.actions import Stage, WorkerCall
from fleet_operator.core.advance import Mode, Target, advance
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.lora_goals import JoinersLora
from fleet_operator.core.messages import problem_of, problem_of_joiners, some
from fleet_operator.core.strategies.base import RolloutProblem
from fleet_operator.core.worker_view import WorkerView
from fleet_worker.protocol import Phase
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The weights at which workers join.

    Fields:
        open_now: workers at the goal may be admitted at once.
        rollout_goal: the goal of the members; a worker that has it already keeps it.
        no_members: the fleet has no member; the fallback serves if no worker can load the goal.
        allows_mixing: goal and fallback may serve at once; a worker that cannot load the goal is
            admitted at the fallback.
        lora_goals: the adapters that workers must have, too, or must not have.
        may_fail: how many workers may fail to load the goal before it is abandoned.
    """

    goal: Checkpoint
    fallback: Checkpoint
    open_now: bool
    rollout_goal: Checkpoint | None = None
    no_members: bool = False
    allows_mixing: bool = False
    lora_goals: tuple[JoinersLora, ...] = ()
    may_fail: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinStep:
    """The calls to the joining workers, and what blocks them."""

    actions: tuple[WorkerCall, ...] = ()
    problem: RolloutProblem | None = None
    requeue_after_seconds: float | None = None


def join(joining: Workers, admission: Admission, settings: Rollout) -> JoinStep:
    """Decides the next call to every joining worker."""
    ready = joining.where(lambda f: f.phase is Phase.JOINING)
    goal, problem = _goal(ready, joining, admission)
    actions: list[WorkerCall] = []
    retries: list[float] = []
    for alike in _alike(ready, admission):
        target = _target_of(alike[0], goal, admission)
        calls = advance(alike, target, settings)
        if any(isinstance(c, Stage) for c in calls):
            actions += _meanwhile(alike, admission)
        actions += calls
        for worker in alike.where(lambda f: f.refuses):
            failure = worker_failures.failure_of(worker, target.weights)
            if failure is not None and not worker.has_loaded(target.weights):
                retries.append(worker_failures.retry_in_seconds(worker, failure))
    order = {w.pod.uid: n for n, w in enumerate(ready)}
    return JoinStep(
        actions=tuple(sorted(actions, key=lambda call: order[call.pod_uid])),
        problem=problem
        or _problem_without_source(ready, goal, admission)
        or _problem_of_stuck(joining, goal, admission),
        requeue_after_seconds=min((s for s in retries if s > 0), default=None),
    )


def _alike(ready: Workers, admission: Admission) -> Iterable[Workers]:
    """The workers in groups that have one target each. One with failures may have a target of its own."""
    groups: dict[object, list[WorkerView]] = {}
    for worker in ready:
        alike = (worker.facts, _is_equipped(worker, admission))
        groups.setdefault(worker.pod.uid if worker.facts.refuses else alike, []).append(worker)
    return map(Workers, groups.values())


def _target_of(worker: WorkerView, goal: Checkpoint, admission: Admission) -> Target:
    """Returns the target of a joining worker. It serves the weights in its engine if these admit it, waits if
    the members will have the same ones, and else loads its own goal.
    """
    other = admission.fallback if goal != admission.fallback else admission.goal
    own = own_goal(worker, goal, other, may_keep=admission.allows_mixing)
    admissible = (goal, own) if admission.allows_mixing else (goal,)
    loaded = next((w for w in admissible if worker.has_loaded(w)), None)
    if loaded is not None:
        opens = admission.open_now and _is_equipped(worker, admission)
        reason = f"it has loaded version {worker.version}, which the fleet serves"
        return Target(loaded, Mode.SERVE if opens else Mode.KEEP, reason)
    coming = admission.rollout_goal
    weights = coming if coming is not None and worker.has_loaded(coming) else own
    return Target(weights, Mode.KEEP, "it joins the fleet")


def _meanwhile(alike: Workers, admission: Admission) -> list[WorkerCall]:
    """The wishes that workers serve the fallback while they wait for a place to read the goal."""
    if admission.no_members or not (admission.allows_mixing and admission.open_now):
        return []
    able = alike.where(lambda f: not f.operation and f.has_loaded(admission.fallback))
    reason = "it serves its version until it may read the next one"
    return [worker_calls.admit(w, reason=reason) for w in able if _is_equipped(w, admission)]


def _is_equipped(worker: WorkerView, admission: Admission) -> bool:
    return all(g.is_met_by(worker) for g in admission.lora_goals)


def _goal(
    ready: Workers, joining: Workers, admission: Admission
) -> tuple[Checkpoint, RolloutProblem | None]:
    goal = admission.goal
    if not admission.no_members or ready.any(lambda f: f.has_loaded(goal)):
        return goal, None
    if not ready:
        # Those that have failed try again. Their problem stays the same until they have loaded the goal.
        return goal, _problem_of_all(joining, admission)
    refuse = ready.where(lambda f: f.refuses)
    refused = [w for w in refuse if worker_failures.failure_of(w, goal)]
    absent = [w for w in refuse if worker_failures.absence(w, goal)]
    others = len(ready) - len(refused) - len(absent)
    if others and len(refused) <= admission.may_fail:
        return goal, None
    if not refused:
        # A checkpoint that does not exist yet is not a failure: the last good version serves meanwhile.
        return admission.fallback if absent else goal, None
    # No worker serves and none can load the goal: the last good version is better than none. If both are the same,
    # what keeps workers out is one problem in all phases.
    return admission.fallback, _problem_of_all(Workers(refused), admission)


def _problem_of_all(joining: Workers, admission: Admission) -> RolloutProblem | None:
    """The problem that no worker serves, and that each has failed to load the goal."""
    goal = admission.goal
    failed = [w for w in joining.where(lambda f: f.refuses) if worker_failures.failure_of(w, goal)]
    if not failed or len(failed) < len(joining) or same_weights(goal, admission.fallback):
        return None
    may_fail = admission.may_fail
    return problem_of(failed, goal, RolloutPhase.STAGING, may_fail=may_fail, halt=False)


def _problem_of_stuck(
    joining: Workers, goal: Checkpoint, admission: Admission
) -> RolloutProblem | None:
    """Returns the problem that workers cannot load any version at which they could join.

    Counts workers in all phases, so that a load that breaks repeatedly stays one problem. A
    worker whose load of the goal broke the engine may never try the fallback: its recovery can take
    longer than the wait before the next attempt. One that has the fallback joins with it only where both
    may serve.
    """
    last = admission.fallback  # tried only after the goal has failed
    if same_weights(admission.goal, last):
        last = admission.goal  # it says whether its digest is that of a pin
    admissible = (goal, last) if admission.allows_mixing else (goal,)
    outside = joining.where(
        lambda f: f.refuses and not any(f.has_loaded(weights) for weights in admissible)
    )
    out = [w for w in outside if worker_failures.failure_of(w, last)]
    if out:
        return problem_of_joiners(out, last)
    loads = ((w, w.state.load_failure) for w in outside if w.state)
    broke = [w for w, failure in loads if failure and worker_failures.is_about(failure, goal)]
    return problem_of_joiners(broke, goal) if broke else None


def _problem_without_source(
    ready: Workers, goal: Checkpoint, admission: Admission
) -> RolloutProblem | None:
    """Returns the problem that workers cannot join, because the weights came over a collective."""
    choices = (goal, admission.goal, admission.fallback)
    if not all(weights.is_transferred for weights in choices):
        return None
    coming = admission.rollout_goal
    waiting = ready.where(
        lambda f: not (f.has_loaded(goal) or (coming is not None and f.has_loaded(coming)))
    )
    if not waiting:
        return None
    message = (
        f"{some(waiting)} cannot join: version {goal.label} did not come from a directory. Publish a "
        "version from a directory, or let the trainer that updates the workers send this one to all of "
        "them again."
    )
    return RolloutProblem(reason=ConditionReason.SOURCE_UNKNOWN, message=message, halt=False)


def own_goal(
    worker: WorkerView, goal: Checkpoint, other: Checkpoint, *, may_keep: bool
) -> Checkpoint:
    """Returns the weights that this worker prepares: the other ones while it cannot load the goal, and
    never weights without a source if the other ones have one.

    `may_keep`: the other ones admit it, too.

    If the worker refused both, both wait, or it would try them in turn without a break. A running stage of
    the other ones ends first, and the worker loads them: the stage may take longer than the wait for the
    goal, and would start repeatedly.
    """
    if may_keep and worker.has_loaded(other) and worker_failures.failure_of(worker, goal):
        return other  # admitted with what it has
    if goal.is_transferred or other.is_transferred:
        return other if goal.is_transferred and not worker.has_loaded(goal) else goal
    refused = worker_failures.last_failure(worker, goal)
    if refused is None:
        return goal
    if worker.is_doing("stage", other):
        return other
    if worker.has_staged(other):
        last = worker_failures.last_failure(worker, other)
        if last is None or last.age_seconds > refused.age_seconds:
            return other
    waits = any(worker_failures.failed_lately(worker, weights) for weights in (goal, other))
    return other if waits else goal
