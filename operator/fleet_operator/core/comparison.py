"""Compares the files of a version with the weights that the fleet has served under it before.

A rollout to a version that all workers have loaded reads no file, and one to staged bytes reads none
again. So another run could write over the directory, create the WeightVersion again, and get `Ready`
for files that no worker has read. If the fleet knows the digest of a version when a WeightVersion
requests it, one serving worker compares the files before the version is Ready. So does one when a version
that all workers had is requested again, which the retry annotation says. Files that are gone count as the same:
trainers delete old checkpoints. The same holds for each LoRA adapter.

A trainer that names the digest in its spec has said which files it means, so no worker compares them. It may take the
digest back, so they count as compared only once all workers serve that digest.
"""

from __future__ import annotations

from dataclasses import replace
from math import inf

from fleet_operator.core import worker_calls, worker_failures
from fleet_operator.core.actions import CompareFiles, CompareLora
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.lateness import lasts
from fleet_operator.core.messages import problem_of_comparison
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.pins import Pins
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.work import Work
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import Reason
from rlfleet_resources.weights_status import RolloutPhase

_GONE = frozenset({Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND})


def needs_comparison(weights: WeightsView | None, desired: Checkpoint, pins: Pins) -> bool:
    """Whether the files of the desired weights have yet to be compared for their WeightVersion."""
    if weights is None or not (desired.reused or pins.of(desired)):
        return False
    status = weights.status
    # Without a start, it is the status of a WeightVersion that steered no fleet yet.
    is_new = status.started_at is None or not status.is_about(desired.version, desired.run_id)
    reached = status.phase is RolloutPhase.APPLIED
    reached = reached or status.has_reached(desired.version, desired.run_id)
    is_again = reached and status.retried != weights.retry
    # A spec that names other files may name those of the version later, after they were written over.
    return status.files_unread or is_new or is_again or desired.reused


def compare_files(
    step: Step, view: RolloutView, *, unread: bool, adapter: str = ""
) -> tuple[Step, bool]:
    """The step, with a comparison of the files if the rollout would end without one.

    Args:
        step: The step of the strategy.
        view: The rollout.
        unread: The files have yet to be compared.
        adapter: The name of the adapter, if it is not the rollout of base weights.

    Returns: the step, one that waits for the comparison, or one with the problem; and whether the
        files have yet to be compared after it.
    """
    if not unread:
        return step, False
    goal = view.desired
    ends = (
        step.phase is RolloutPhase.APPLIED
        and step.problem is None
        and same_weights(step.goal, goal)
        and not view.halted
        and view.members.all(lambda f: f.has_loaded(goal))
    )
    serving = view.members.where(lambda f: f.standing is Standing.OPEN and f.has_loaded(goal))
    if not ends or not serving:
        return step, True
    work = Work(CompareFiles.kind, goal.version, goal.run_id)
    if adapter:
        work = Work(CompareLora.kind, goal.version, goal.run_id, adapter)
    if not goal.pinned or _is_compared(serving, view, work):
        return step, False
    step = replace(
        step,
        phase=RolloutPhase.COMPARING,
        note=f"a worker compares the files in {goal.source} with the served weights",
        problem=_problem_of(serving, view, goal, adapter),
    )
    reader = _reader(serving, view, work, adapter)
    if reader is None or (adapter and not reader.accepts_lora):
        return step, True
    if any(action.pod_uid == reader.pod.uid for action in step.actions):
        return step, True
    call = worker_calls.compare(reader, goal, view.settings, adapter=adapter)
    return replace(step, actions=(*step.actions, call)), True


def _is_compared(serving: Workers, view: RolloutView, work: Work) -> bool:
    """Whether a worker has found the same files, or none, since the request for this comparison.

    An earlier call may have looked at the files before they were written over.
    """
    if view.phase is not RolloutPhase.COMPARING:
        return False
    began_seconds = min(view.phase_seconds, view.rollout_seconds)
    within_seconds = began_seconds + worker_failures.ROUNDING_SECONDS
    return any(
        any(c.work == work and c.seconds < within_seconds for c in worker.compared)
        or _finds_none(worker, view.desired, within_seconds=began_seconds)
        for worker in serving
    )


def _finds_none(worker: WorkerView, goal: Checkpoint, *, within_seconds: float = inf) -> bool:
    failure = worker_failures.failure_of(worker, goal, within_seconds=within_seconds)
    return failure is not None and failure.reason in _GONE


def _problem_of(
    serving: Workers, view: RolloutView, goal: Checkpoint, adapter: str
) -> RolloutProblem | None:
    refuse = serving.where(lambda f: f.refuses)
    refused = [
        w
        for w in refuse
        if (view.failure_of(w, goal) or _waits_for_retry(w, view, goal, adapter))
        and not _finds_none(w, goal)
    ]
    is_late = lasts(view, view.staging_seconds(), RolloutPhase.COMPARING)
    failed = refused or (serving[:1] if is_late else [])
    return problem_of_comparison(failed, goal) if failed else None


def _reader(serving: Workers, view: RolloutView, work: Work, adapter: str) -> WorkerView | None:
    """The worker to call, always the same one while it can be: each may read the whole checkpoint."""
    goal = view.desired
    begun = [
        w for w in serving if w.call == work or worker_failures.last_failure(w, goal) is not None
    ]
    reader = (begun or serving)[0]
    return None if _waits_for_retry(reader, view, goal, adapter) else reader


def _waits_for_retry(worker: WorkerView, view: RolloutView, goal: Checkpoint, adapter: str) -> bool:
    """Whether a worker waits for a retry after a refusal. Of an adapter, refusals of earlier attempts count."""
    within_seconds = inf if adapter else view.rollout_seconds
    return worker_failures.failed_lately(worker, goal, within_seconds=within_seconds)
