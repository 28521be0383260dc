"""Brings workers with a closed latch to the version that the fleet serves, and admits them.

A joiner is new, restarted, or was fenced. It started on the version that was applied when its
container started, or on the model's own weights; whatever it holds, it is admitted only at the
version named by the strategy, and only when the strategy says that this disturbs nobody.

A joiner whose version cannot be had any more (trainers delete old checkpoints) prepares the
fallback instead and waits for the fleet to get there.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.adapter_goals import AdapterGoal
from fleet_operator.core.observed import Target, WorkerView
from fleet_operator.core.problems import problem_of, problem_of_joiners
from fleet_operator.core.step import Problem
from fleet_worker.protocol import Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """What joiners are brought to.

    Fields:
        open_now: joiners at the version may be admitted at once.
        coming: what the members will have soon; a joiner that has it already stays with it.
        first: the fleet has no member; if nobody can take the version, the fallback serves.
        mixed: both may serve at the same time; who cannot take the version comes in at the
            fallback.
        adapters: what they must have besides.
        may_fail: how many workers may fail to take the version before it is given up.
    """

    version: Target
    fallback: Target
    open_now: bool
    coming: Target | None = None
    first: bool = False
    mixed: bool = False
    adapters: tuple[AdapterGoal, ...] = ()
    may_fail: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Joining:
    """The calls to the joiners, and what hinders them."""

    actions: tuple[WorkerCall, ...] = ()
    problem: Problem | None = None
    requeue_after_seconds: float | None = None


_HALF_CLOSED = frozenset({Phase.SERVING, Phase.PAUSED})
"""What a closed worker never is, but for one of an earlier release whose fence has failed."""


def join(joiners: tuple[WorkerView, ...], admission: Admission, settings: Rollout) -> Joining:
    """Decide the next call to every joiner."""
    ready = [j for j in joiners if j.state is not None and j.state.phase is Phase.JOINING]
    wanted, problem = _wanted(ready, admission)
    actions: list[WorkerCall] = [
        calls.close(j, reason=f"its latch is closed and it is {j.state.phase}: a fence has failed")
        for j in joiners
        if j.state is not None and j.state.phase in _HALF_CLOSED and not j.busy
    ]
    retries: list[float] = []
    for joiner in ready:
        own = _own_goal(joiner, wanted, admission)
        welcome = (wanted, own) if admission.mixed else (wanted,)
        if any(joiner.has_loaded(weights) for weights in welcome):
            equipped = all(g.is_met_by(joiner) for g in admission.adapters)
            if admission.open_now and equipped and not joiner.operation:
                reason = f"it reports a version that the fleet serves, {joiner.version}"
                actions.append(calls.admit(joiner, reason=reason))
        elif joiner.has_loaded(own) or _has(joiner, admission.coming):
            continue  # it waits for the others to get there
        elif joiner.operation.startswith(("load", "fence")):
            continue
        elif (failure := calls.failure_of(joiner, own)) and calls.failed_lately(joiner, own):
            retries.append(calls.retry_in_seconds(joiner, failure))
        elif joiner.has_staged(own):
            actions.append(calls.load(joiner, own, settings, reason="it joins the fleet"))
        elif not joiner.is_at("stage", own):
            actions.append(calls.stage(joiner, own, settings, reason="it joins the fleet"))
    return Joining(
        actions=tuple(actions),
        problem=problem or _shut_out(joiners, wanted, admission),
        requeue_after_seconds=min(retries, default=None),
    )


def _has(joiner: WorkerView, target: Target | None) -> bool:
    return target is not None and joiner.has_loaded(target)


def _wanted(ready: list[WorkerView], admission: Admission) -> tuple[Target, Problem | None]:
    wanted = admission.version
    if not admission.first or any(j.has_loaded(wanted) for j in ready):
        return wanted, None
    refused = [j for j in ready if calls.failure_of(j, wanted)]
    absent = [j for j in ready if calls.finds_nothing(j, wanted)]
    others = len(ready) - len(refused) - len(absent)
    if others and len(refused) <= admission.may_fail:
        return wanted, None
    if not refused:
        # A checkpoint that does not exist yet is no problem: the last good version serves meanwhile.
        return admission.fallback if absent else wanted, None
    # Nobody serves and nobody can take it: better the last good version than none.
    may_fail = admission.may_fail
    problem = problem_of(refused, wanted, RolloutPhase.STAGING, may_fail=may_fail, halt=False)
    return admission.fallback, problem


def _shut_out(
    joiners: tuple[WorkerView, ...], wanted: Target, admission: Admission
) -> Problem | None:
    """Who cannot take any version that would let him in. Counted in all phases: a load that breaks
    again and again is one problem, not many. Whose engine the wanted one broke may never come to try
    the other one: going back to the last good weights can take longer than the failure is let rest.
    """
    last = admission.fallback  # tried when the wanted version had failed already
    outside = [j for j in joiners if not (j.has_loaded(wanted) or j.has_loaded(last))]
    out = [j for j in outside if calls.failure_of(j, last)]
    if out:
        return problem_of_joiners(out, last)
    loads = ((j, j.state.load_failure) for j in outside if j.state)
    broke = [j for j, failure in loads if failure and calls.is_about(failure, wanted)]
    return problem_of_joiners(broke, wanted) if broke else None


def _own_goal(joiner: WorkerView, wanted: Target, admission: Admission) -> Target:
    """What this joiner prepares: the fallback while the wanted version cannot be had.

    Where the fallback was refused, the wanted version had been refused before it: both rest, or the
    two would be tried in turn without a pause. A stage of the fallback comes to its end first: it may
    take longer than the wanted version rests, and would begin again and again.
    """
    other = admission.fallback if wanted != admission.fallback else admission.version
    if admission.mixed and joiner.has_loaded(other) and calls.failure_of(joiner, wanted):
        return other  # it is welcome with what it has
    if joiner.is_at("stage", other) and calls.last_answer(joiner, wanted) is not None:
        return other
    failed = (wanted, other)
    return other if any(calls.failed_lately(joiner, weights) for weights in failed) else wanted
