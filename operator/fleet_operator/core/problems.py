"""Says in words why workers do not take a version, and what a person can do."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.counts import agree, counted
from fleet_operator.core.identity import short
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_operator.core.step import Problem
from fleet_worker.protocol import Reason

_NAMED_AT_MOST = 3
_REFUSALS = frozenset(reason.value for reason in ConditionReason)


def problem_of(
    failed: Sequence[WorkerView],
    goal: Target,
    phase: RolloutPhase,
    *,
    may_fail: int,
    halt: bool,
) -> Problem:
    """The problem that more workers than allowed, `may_fail`, failed to take the goal."""
    reason = _reason(failed, goal, phase)
    if reason is ConditionReason.VERSION_REUSED:
        return Problem(reason=reason, message=_rewritten(failed, goal), halt=halt)
    way_out = (
        "It will not be tried again: publish another version."
        if halt
        else f"Checked again every {calls.RETRY_SECONDS:.0f} s; repair the source or publish "
        "another version."
    )
    many = len(failed) > may_fail
    limit = f"{may_fail} may fail" if many else "and no other worker is there"
    message = (
        f"{counted(len(failed), 'worker')} cannot take version {goal}, {limit}. "
        f"{_causes(failed, goal)}. The applied version keeps serving. {way_out}"
    )
    return Problem(reason=reason, message=message, halt=halt)


def problem_of_joiners(failed: Sequence[WorkerView], goal: Target) -> Problem:
    """The problem that workers cannot join, since they cannot take what the fleet serves."""
    return _problem_of_some(failed, goal, f"cannot join at version {goal}")


def problem_of_stragglers(failed: Sequence[WorkerView], goal: Target) -> Problem:
    """The problem that workers go on with an older version, since they cannot take this one."""
    serve = agree(len(failed), "serves", "serve")
    return _problem_of_some(failed, goal, f"cannot take version {goal} and {serve} an older one")


def problem_of_missing(
    missing: int, at_once: int, behind: Sequence[WorkerView], goal: Target
) -> Problem:
    """The problem that nobody may be taken away for a swap, since others are away already."""
    message = (
        f"{some(behind)} {agree(len(behind), 'waits', 'wait')} with version {goal.label}: "
        f"{counted(missing, 'worker')} {agree(missing, 'does', 'do')} not serve, and maxUnavailable lets {at_once} be away. See the fleet's laggards, and repair or delete their "
        "pods, or raise maxUnavailable."
    )
    return Problem(reason=ConditionReason.DEADLINE_EXCEEDED, message=message, halt=False)


def problem_of_absent(goal: Target, seconds: int) -> Problem:
    """The problem that a version has waited for its directory for longer than it may."""
    message = (
        f"{goal.source} does not exist, for longer than {seconds} s. Version {goal.label} keeps "
        "waiting for it, and what is applied keeps serving. Write the checkpoint, correct "
        "spec.source together with spec.version, or raise rollout.timeouts.checkpointSeconds."
    )
    return Problem(reason=ConditionReason.SOURCE_NOT_FOUND, message=message, halt=False)


def _problem_of_some(failed: Sequence[WorkerView], goal: Target, what: str) -> Problem:
    reason = _reason(failed, goal, RolloutPhase.STAGING)
    if reason is ConditionReason.VERSION_REUSED:
        return Problem(reason=reason, message=_rewritten(failed, goal), halt=False)
    message = (
        f"{counted(len(failed), 'worker')} {what}. {_causes(failed, goal)}. Checked again every "
        f"{calls.RETRY_SECONDS:.0f} s; repair the source or publish another version."
    )
    if reason is ConditionReason.FAILURE_BUDGET_EXCEEDED:
        reason = ConditionReason.WORKERS_FAILING
    return Problem(reason=reason, message=message, halt=False)


def _rewritten(failed: Sequence[WorkerView], goal: Target) -> str:
    return (
        f"version {goal} stands for files with digest {short(goal.digest)}, and {some(failed)} "
        f"found others: {_causes(failed, goal)}. What is applied keeps serving. Restore the files, "
        "publish these under another version, or set another spec.runID if another run has made "
        "them. Delete a pod whose process has seen the other files already."
    )


def why(worker: WorkerView, goal: Target) -> str:
    """Why this worker does not take the goal."""
    failure = calls.last_answer(worker, goal)
    if failure is not None:
        return f"{failure.reason}: {failure.message}"
    if worker.standing is Standing.UNKNOWN:
        return f"does not answer: {worker.silence}"
    doing = worker.operation or (str(worker.state.phase) if worker.state else "starting")
    return f"not done within the time-out, it is at {doing!r}"


def unready(workers: Sequence[WorkerView], goal: Target) -> str:
    """What workers wait for that cannot stage yet; empty if nobody does."""
    waiting = [(w, said) for w in workers if (said := calls.waits(w, goal))]
    if not waiting:
        return ""
    first = waiting[0][1]
    wait = agree(len(waiting), "waits", "wait")
    return f"; {some([w for w, _ in waiting])} {wait} ({first.reason}): {first.message}"


def _causes(failed: Sequence[WorkerView], goal: Target) -> str:
    by_cause: dict[str, list[WorkerView]] = {}
    for worker in failed:
        by_cause.setdefault(why(worker, goal), []).append(worker)
    named = list(by_cause.items())[:_NAMED_AT_MOST]
    return "; ".join(f"{cause} ({some(workers)})" for cause, workers in named)


def some(workers: Sequence[WorkerView]) -> str:
    """The first few names, and how many more."""
    names = ", ".join(w.pod.name for w in workers[:_NAMED_AT_MOST])
    more = len(workers) - _NAMED_AT_MOST
    return f"{names} and {more} more" if more > 0 else names


def names(workers: Sequence[WorkerView]) -> tuple[str, ...]:
    """All names, in the order given."""
    return tuple(w.pod.name for w in workers)


def _reason(failed: Sequence[WorkerView], goal: Target, phase: RolloutPhase) -> ConditionReason:
    failures = [f for w in failed if (f := calls.failure_of(w, goal))]
    if not failures:
        return ConditionReason.DEADLINE_EXCEEDED
    reasons = {f.reason for f in failures}
    if Reason.VERSION_REUSED in reasons or (goal.pinned and Reason.DIGEST_MISMATCH in reasons):
        return ConditionReason.VERSION_REUSED
    said = failures[0].reason
    if said is Reason.SOURCE_ABSENT:
        said = Reason.SOURCE_NOT_FOUND
    # A word that this release does not know is no reason of a condition, whatever it spells.
    if phase is RolloutPhase.STAGING and isinstance(said, Reason) and said.value in _REFUSALS:
        return ConditionReason(said.value)
    return ConditionReason.FAILURE_BUDGET_EXCEEDED
