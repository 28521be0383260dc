"""Messages: why workers do not load a version, and the remedy."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.core import worker_failures
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import short_digest
from fleet_operator.core.peers import reads_from
from fleet_operator.core.strategies.base import RolloutProblem
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import agree, counted
from fleet_worker.protocol import Reason
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

_NAMED_AT_MOST = 3
_REFUSALS = frozenset(reason.value for reason in ConditionReason)
TRIED_AGAIN = (
    f"The operator tries again after {worker_failures.RETRY_SECONDS:.0f} to "
    f"{worker_failures.LONGEST_RETRY_SECONDS:.0f} s; repair the source (`rlfleet retry` tries at once), or "
    "publish another version."
)
CHECK_WORKERS = "Check the image of these workers, and what else may answer at their admin ports,"


def problem_of(
    failed: Sequence[WorkerView],
    goal: Checkpoint,
    phase: RolloutPhase,
    *,
    may_fail: int,
    halt: bool,
    others_serve: bool = False,
) -> RolloutProblem:
    """The problem that more workers than `may_fail` failed to load the goal. `others_serve`: some serve it, and keep
    it.
    """
    reason = _reason(failed, goal, phase)
    if reason is ConditionReason.VERSION_REUSED:
        return RolloutProblem(reason=reason, message=_rewritten(failed, goal), halt=halt)
    remedy = _remedy(reason, halt=halt)
    many = len(failed) > may_fail
    limit = f"maxFailures allows {may_fail}" if many else "no other worker is available"
    stays = "The fleet stays on the applied version"
    if others_serve:
        stays = "Workers that have loaded it keep serving it, and the others stay on the applied version"
    message = (
        f"{counted(len(failed), 'worker')} cannot load version {goal}; {limit}. "
        f"{_causes(failed, goal)}. {stays}. {remedy}"
    )
    return RolloutProblem(reason=reason, message=message, halt=halt)


def problem_of_joiners(failed: Sequence[WorkerView], goal: Checkpoint) -> RolloutProblem:
    """The problem that workers cannot join, because they cannot load the version of the fleet."""
    return _problem_of_some(failed, goal, f"cannot join at version {goal}")


def problem_of_stragglers(failed: Sequence[WorkerView], goal: Checkpoint) -> RolloutProblem:
    """The problem that workers keep an older version, because they cannot load the goal."""
    serve = agree(len(failed), "serves", "serve")
    return _problem_of_some(failed, goal, f"cannot load version {goal} and {serve} an older one")


def problem_of_late(late: Sequence[WorkerView], goal: Checkpoint) -> RolloutProblem:
    """The problem that workers do not serve a version after the time that this may take."""
    do = agree(len(late), "does", "do")
    return _problem_of_some(late, goal, f"{do} not serve version {goal} in time")


def problem_of_slots(
    bare: Sequence[WorkerView], goal: Checkpoint, *, by_deletion: bool
) -> RolloutProblem:
    """The problem that workers have no slots for adapters, and `spec.update` keeps their pods."""
    pods = agree(len(bare), "the pod", "the pods")
    remedy = "Delete" if by_deletion else "Set spec.update.paused to false, or delete"
    message = (
        f"{counted(len(bare), 'worker')} cannot serve version {goal}: {some(bare)} "
        f"{agree(len(bare), 'has', 'have')} an older template without slots for adapters. "
        f"{remedy} {pods}."
    )
    return RolloutProblem(reason=ConditionReason.UPDATE_HELD, message=message, halt=False)


def problem_of_missing(
    missing: int, at_once: int, behind: Sequence[WorkerView], goal: Checkpoint
) -> RolloutProblem:
    """The problem that no worker may swap, because too many others do not serve."""
    message = (
        f"{some(behind)} {agree(len(behind), 'waits', 'wait')} for version {goal.label}: "
        f"{counted(missing, 'worker')} {agree(missing, 'does', 'do')} not serve, and maxUnavailable "
        f"is {at_once}. See status.laggards of the fleet, and repair or delete these pods, or raise "
        "maxUnavailable."
    )
    return RolloutProblem(reason=ConditionReason.DEADLINE_EXCEEDED, message=message, halt=False)


def problem_of_absent(goal: Checkpoint, seconds: int, found: str) -> RolloutProblem:
    """The problem that the directory of a version has been missing for more than `seconds`.

    `found`: what a worker says about its place.
    """
    message = (
        f"{goal.source} has been missing for more than {seconds} s: {found}. Version {goal.label} keeps "
        "waiting for it, and the fleet stays on the applied version. Write the checkpoint, correct "
        "spec.source together with spec.version, or raise rollout.timeouts.checkpointSeconds."
    )
    return RolloutProblem(reason=ConditionReason.SOURCE_NOT_FOUND, message=message, halt=False)


def problem_of_comparison(failed: Sequence[WorkerView], goal: Checkpoint) -> RolloutProblem:
    """The problem that the files of a served version have changed, or cannot be compared with it."""
    reason = _reason(failed, goal, RolloutPhase.STAGING)
    if reason is ConditionReason.VERSION_REUSED:
        return RolloutProblem(reason=reason, message=_rewritten(failed, goal), halt=False)
    message = (
        f"all workers serve version {goal.label}, and the files in {goal.source} cannot be compared "
        f"with it: {_causes(failed, goal)}. Workers keep serving it. Restore the files, publish the new "
        "ones under another version, or set another spec.runID if another run has made them."
    )
    return RolloutProblem(reason=reason, message=message, halt=False)


def _problem_of_some(failed: Sequence[WorkerView], goal: Checkpoint, what: str) -> RolloutProblem:
    reason = _reason(failed, goal, RolloutPhase.STAGING)
    if reason is ConditionReason.VERSION_REUSED:
        return RolloutProblem(reason=reason, message=_rewritten(failed, goal), halt=False)
    causes, remedy = _causes(failed, goal), _remedy(reason, halt=False)
    message = f"{counted(len(failed), 'worker')} {what}. {causes}. {remedy}"
    if reason is ConditionReason.FAILURE_BUDGET_EXCEEDED:
        reason = ConditionReason.WORKERS_FAILING
    return RolloutProblem(reason=reason, message=message, halt=False)


def _remedy(reason: ConditionReason, *, halt: bool) -> str:
    if reason is ConditionReason.CALL_WITHOUT_EFFECT:
        return f"{CHECK_WORKERS} and delete these pods."
    if halt:
        return "The version is abandoned: publish another version."
    if reason is ConditionReason.DEADLINE_EXCEEDED:
        return (
            "The operator keeps trying; repair the source, publish another version, or raise "
            "rollout.timeouts."
        )
    return TRIED_AGAIN


def _rewritten(failed: Sequence[WorkerView], goal: Checkpoint) -> str:
    before = f"files with digest {short_digest(goal.digest)}" if goal.digest else "files already"
    return (
        f"version {goal} names {before}, and {some(failed)} found other files: "
        f"{_causes(failed, goal)}. The fleet stays on the applied version. Restore the files, "
        "publish the new ones under another version, or set another spec.runID if another run has "
        "made them. Delete a pod whose process has seen the other files already."
    )


def why(worker: WorkerView, goal: Checkpoint) -> str:
    """Why this worker does not load the goal."""
    failure = worker_failures.last_failure(worker, goal)
    if failure is not None:
        return f"{failure.reason}: {failure.message}"
    if worker.standing is Standing.UNKNOWN:
        return f"does not answer: {worker.silence}"
    doing = worker.operation or (worker.state.phase if worker.state else "starting")
    return f"timed out; worker phase: {doing}"


def unready(workers: Sequence[WorkerView], goal: Checkpoint) -> str:
    """The part of a note that names what workers wait for before they can stage; may be empty."""
    refuse = Workers.of(workers).where(lambda f: f.refuses)
    waiting = [(w, answer) for w in refuse if (answer := worker_failures.pending_failure(w, goal))]
    if not waiting:
        return ""
    first = waiting[0][1]
    wait = agree(len(waiting), "waits", "wait")
    return f"; {some([w for w, _ in waiting])} {wait} ({first.reason}): {first.message}"


def peers_told(workers: Sequence[WorkerView]) -> str:
    """The part of a note about peers: the workers that read from them, peers with other bytes than those of the
    version, and peers that others cannot read. Empty without any.

    A peer that has stopped to serve the version has only passed on what it read itself, and found it out, or has
    ended.
    """
    pods = {w.pod.uid: w.pod.name for w in workers}
    serves = {
        (w.pod.uid, digest)
        for w in workers
        if w.state is not None and w.state.peers is not None
        for digest in w.state.peers.serves
    }
    read = [(w, pods.get(uid, uid)) for w in workers if (uid := reads_from(w)) is not None]
    pairs = [f"{worker.pod.name} from {peer}" for worker, peer in read]
    refused = [
        (w, each)
        for w in workers
        if w.state is not None and w.state.peers is not None
        for each in w.state.peers.refused
        if (each.pod_uid, each.digest) in serves
    ]
    false = {
        pods[each.pod_uid]: f"{each.reason} on {w.pod.name}"
        for w, each in refused
        if each.reason != Reason.PEER_UNREADABLE
    }
    unread = {
        f"{w.pod.name} from {pods[each.pod_uid]}": each.message
        for w, each in refused
        if each.reason == Reason.PEER_UNREADABLE
    }
    parts = []
    if pairs:
        parts.append(f"reads from peers: {named(pairs, len(pairs))}")
    if false:
        found = [f"{pod} ({why_})" for pod, why_ in sorted(false.items())]
        pod = agree(len(found), "the pod", "the pods")
        parts.append(f"peers with other bytes: {named(found, len(found))}; delete {pod}")
    if unread:
        why_ = next(iter(unread.values()))
        parts.append(f"cannot read from peers: {named([*unread], len(unread))} ({why_})")
    return "; ".join(parts)


def _causes(failed: Sequence[WorkerView], goal: Checkpoint) -> str:
    by_cause: dict[str, list[WorkerView]] = {}
    for worker in failed:
        by_cause.setdefault(why(worker, goal), []).append(worker)
    named = list(by_cause.items())[:_NAMED_AT_MOST]
    return "; ".join(f"{cause} ({some(workers)})" for cause, workers in named)


def some(workers: Sequence[WorkerView]) -> str:
    """The names of the first workers, and the number of the others."""
    return named([w.pod.name for w in workers[:_NAMED_AT_MOST]], len(workers))


def named(names: Sequence[str], number: int) -> str:
    """The first names, and the number of the others. `number`: how many there are."""
    first, more = ", ".join(names[:_NAMED_AT_MOST]), number - _NAMED_AT_MOST
    return f"{first} and {more} more" if more > 0 else first


def pod_names(workers: Sequence[WorkerView]) -> tuple[str, ...]:
    """The names of all workers, in the same order."""
    return tuple(w.pod.name for w in workers)


def _reason(failed: Sequence[WorkerView], goal: Checkpoint, phase: RolloutPhase) -> ConditionReason:
    failures = [f for w in failed if (f := worker_failures.failure_of(w, goal))]
    if not failures:
        return ConditionReason.DEADLINE_EXCEEDED
    reasons = {f.reason for f in failures}
    if reasons == {worker_failures.NO_EFFECT}:
        return ConditionReason.CALL_WITHOUT_EFFECT
    if Reason.VERSION_REUSED in reasons or (goal.pinned and Reason.DIGEST_MISMATCH in reasons):
        return ConditionReason.VERSION_REUSED
    first = failures[0].reason
    if first is Reason.SOURCE_ABSENT:
        first = Reason.SOURCE_NOT_FOUND
    # An unknown reason of a newer worker never becomes the reason of a condition.
    if phase is RolloutPhase.STAGING and isinstance(first, Reason) and first.value in _REFUSALS:
        return ConditionReason(first.value)
    return ConditionReason.FAILURE_BUDGET_EXCEEDED
