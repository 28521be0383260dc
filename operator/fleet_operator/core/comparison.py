"""Compares the files of a version that all workers serve already with the served weights.

A rollout to a version that all workers have loaded reads no files. So another run could write over
the directory of the served version, create the WeightVersion again, and get `Ready` for files that no
worker has read. For a status that does not know the version yet, one serving worker compares the
files first. Files that are gone count as the same: trainers delete old checkpoints.

A trainer that names the digest in its spec has said which files it means, so no worker reads them.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import worker_failures
from fleet_operator.core.actions import CompareFiles
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.messages import problem_of_comparison
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView, Step
from fleet_operator.core.work import Work
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_worker.protocol import Reason

_GONE = frozenset({Reason.SOURCE_ABSENT, Reason.SOURCE_NOT_FOUND})


def compare_files(step: Step, view: RolloutView, *, is_new: bool) -> Step:
    """The step, with a comparison of the files if the rollout would end without one.

    Args:
        step: The step of the strategy.
        view: The rollout.
        is_new: The status of the WeightVersion does not know the desired weights yet.

    Returns: the step, one that waits for the comparison, or one with the problem.
    """
    goal = view.desired
    ends_unread = (
        step.phase is RolloutPhase.APPLIED
        and step.problem is None
        and (is_new or view.phase is RolloutPhase.COMPARING)
        and goal.pinned
        and same_weights(step.goal, goal)
    )
    serving = view.members.where(lambda f: f.standing is Standing.OPEN and f.has_loaded(goal))
    if not ends_unread or not serving or _is_compared(serving, view, goal):
        return step
    problem = _problem_of(serving, view, goal)
    step = replace(
        step,
        phase=RolloutPhase.COMPARING,
        note=f"a worker compares the files in {goal.source} with the served weights",
        problem=problem,
    )
    reader = _reader(serving, view, goal)
    called = {action.pod_uid for action in step.actions}
    if reader is None or reader.pod.uid in called:
        return step
    call = CompareFiles(
        pod_uid=reader.pod.uid,
        pod_name=reader.pod.name,
        reason="all workers serve it, and the WeightVersion is new",
        version=goal.version,
        run_id=goal.run_id,
        source=goal.source,
        timeout_seconds=view.settings.timeouts.stage_seconds,
    )
    return replace(step, actions=(*step.actions, call))


def _work(goal: Checkpoint) -> Work:
    return Work(CompareFiles.kind, goal.version, goal.run_id)


def _is_compared(serving: Workers, view: RolloutView, goal: Checkpoint) -> bool:
    """Whether a worker has found the same files, or none."""
    return any(
        worker.compared == _work(goal)
        or ((failure := view.failure_of(worker, goal)) is not None and failure.reason in _GONE)
        for worker in serving
    )


def _problem_of(serving: Workers, view: RolloutView, goal: Checkpoint) -> RolloutProblem | None:
    refused = [w for w in serving.where(lambda f: f.refuses) if view.failure_of(w, goal)]
    is_late = view.phase_seconds > view.staging_seconds(1)
    failed = refused or (serving[:1] if is_late else [])
    return problem_of_comparison(failed, goal) if failed else None


def _reader(serving: Workers, view: RolloutView, goal: Checkpoint) -> WorkerView | None:
    """The worker to call, always the same one while it can be: each may read the whole checkpoint."""
    begun = [
        w
        for w in serving
        if w.call == _work(goal) or worker_failures.last_failure(w, goal) is not None
    ]
    reader = (begun or serving)[0]
    return None if view.failed_lately(reader, goal) else reader
