"""Waits for a checkpoint that does not exist yet.

A WeightVersion may be created before the first checkpoint, and a trainer may publish a version before
it writes the files. As long as no worker has found the directory this is not a failure: the version stays
`Pending`, no timeout of a phase runs, and it is never abandoned. After
`rollout.timeouts.checkpointSeconds` it is reported as a problem, since the path may be wrong.

A missing directory is a failure if a worker has held the version before. A missing file in an existing
directory is always a failure.
"""

from __future__ import annotations

from dataclasses import replace

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_failures
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.messages import problem_of_absent
from fleet_operator.core.strategies.base import Step
from rlfleet_resources.weights_status import RolloutPhase


def mark_awaited(
    wanted: Checkpoint, applied: Checkpoint, workers: Workers, *, seen: bool
) -> Checkpoint:
    """Returns the desired weights, marked as awaited if their directory may still be written.

    `seen`: a worker has held them before. If no worker holds them now, their directory was deleted.
    """
    held = workers.any(lambda f: f.has_loaded(wanted) or f.has_staged(wanted))
    awaited = (held or not seen) and not same_weights(wanted, applied)
    return replace(wanted, awaited=True) if awaited else wanted


def is_missing(workers: Workers, goal: Checkpoint) -> bool:
    """Whether a worker has looked for the goal's directory and none has found it yet."""
    return _what_is_there(workers, goal) is not None


def _what_is_there(workers: Workers, goal: Checkpoint) -> str | None:
    """Returns the message of the first worker that finds no directory; None if it is not missing.

    The first one, so that the message of a condition does not change with each answer.
    """
    if workers.any(lambda f: f.has_loaded(goal) or f.has_staged(goal)):
        return None
    found = (worker_failures.absence(w, goal) for w in workers.where(lambda f: f.refuses))
    return next((failure.message for failure in found if failure is not None), None)


def wait_for_source(
    step: Step,
    workers: Workers,
    settings: Rollout,
    *,
    phase: RolloutPhase,
    phase_seconds: float,
) -> Step:
    """Returns the step, or one that waits if no worker finds the directory of its goal.

    `workers`: those that may load the goal. `phase`, `phase_seconds`: the recorded phase
    and its duration so far.
    """
    goal = step.goal
    if step.problem is not None or (found := _what_is_there(workers, goal)) is None:
        return step
    limit = settings.timeouts.checkpoint_seconds
    overdue = phase is RolloutPhase.PENDING and phase_seconds > limit
    return replace(
        step,
        phase=RolloutPhase.PENDING,
        note=f"{goal.source}: {found}. Workers look for it every few seconds",
        problem=problem_of_absent(goal, limit, found) if overdue else None,
        awaits_source=True,
    )
