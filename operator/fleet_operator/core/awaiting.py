"""Waits for a checkpoint that does not exist yet.

A WeightVersion may be created before the first checkpoint, and a trainer may publish a version before
it writes the files. As long as no worker has found the directory this is no failure: the version stays
`Pending`, no timeout of a phase runs, and it is never abandoned. After
`rollout.timeouts.checkpointSeconds` it is reported as a problem, since the path may be wrong.

A directory that is gone after a worker has held the version is a failure, and so is a file that is
missing in a directory that exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.identity import same_weights
from fleet_operator.core.observed import Target, WorkerView
from fleet_operator.core.problems import problem_of_absent
from fleet_operator.core.step import Step


def awaited(
    wanted: Target, applied: Target, workers: Sequence[WorkerView], *, seen: bool
) -> Target:
    """The wanted weights, marked if a rollout is to bring them.

    `seen`: a worker has held them before. If none holds them now, their directory was deleted.
    """
    held = any(w.has_loaded(wanted) or w.has_staged(wanted) for w in workers)
    is_new = not same_weights(wanted, applied)
    return replace(wanted, awaited=is_new and (held or not seen))


def is_absent(workers: Sequence[WorkerView], goal: Target) -> bool:
    """Whether a worker has looked for the goal's directory and none has found it yet."""
    held = any(w.has_loaded(goal) or w.has_staged(goal) for w in workers)
    return not held and any(calls.finds_nothing(w, goal) for w in workers)


def wait(
    step: Step,
    workers: Sequence[WorkerView],
    settings: Rollout,
    *,
    phase: RolloutPhase,
    phase_seconds: float,
) -> Step:
    """The step, as one that waits if no worker finds the directory of its goal.

    `workers`: all that may be asked for the goal. `phase`, `phase_seconds`: the recorded phase, and
    how long it has lasted.
    """
    goal = step.goal
    if step.problem is not None or not is_absent(workers, goal):
        return step
    limit = settings.timeouts.checkpoint_seconds
    overdue = phase is RolloutPhase.PENDING and phase_seconds > limit
    return replace(
        step,
        phase=RolloutPhase.PENDING,
        note=f"{goal.source} does not exist yet; it is looked for again every few seconds",
        problem=problem_of_absent(goal, limit) if overdue else None,
        awaits_source=True,
    )
