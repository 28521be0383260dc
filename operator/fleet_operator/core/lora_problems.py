"""Finds why the rollout of a LoRA adapter needs attention. The rollout continues, and the problem ends by
itself.

    more than maxFailures workers refuse the goal, or all that lack it      the reason of the refusal
    a worker that joins refuses every version that would admit it           the reason of the refusal
    workers without adapter slots, while `spec.update` keeps their pods     UpdateHeld, at once
    the rollout lasts longer than `timeouts.stageSeconds` + `loadSeconds`   DeadlineExceeded
    so does the replacement of pods without slots, and no new worker starts DeadlineExceeded
    a worker that joins waits for the applied version for as long           DeadlineExceeded

A rollout of base weights may hold members meanwhile, so they have the time of its pause and its load, too.
With `maxStaging` the first of these times counts once for each group of workers. The phase does not
matter: workers may stage until all serve, and base weights are loaded before adapters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_operator.api.fleet import Update
from fleet_operator.core import worker_failures
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.lateness import lasts
from fleet_operator.core.messages import (
    problem_of,
    problem_of_joiners,
    problem_of_late,
    problem_of_slots,
    problem_of_stragglers,
)
from fleet_operator.core.strategies.base import RolloutProblem, RolloutView
from fleet_operator.core.worker_view import WorkerView
from fleet_operator.counts import counted
from rlfleet_resources.weights_status import RolloutPhase


def problem_of_lora(
    view: RolloutView,
    goal: Checkpoint,
    recorded: Checkpoint | None,
    *,
    behind: Workers,
    failed: Sequence[WorkerView],
    update: Update,
) -> RolloutProblem | None:
    """Returns the first problem that holds. Refusals come first, since they name a cause.

    Args:
        view: The rollout of the adapter.
        goal: What members should serve.
        recorded: The applied version; None without one.
        behind: Members that do not serve the goal.
        failed: Those of them that have refused it.
        update: How the fleet replaces its pods.
    """
    if len(failed) > view.may_fail:
        phase, may_fail = RolloutPhase.STAGING, view.may_fail
        return problem_of(failed, goal, phase, may_fail=may_fail, halt=False)
    if failed and len(failed) == len(behind):
        return problem_of_stragglers(failed, goal)  # no other worker makes progress
    problem = _problem_of_joiners(view.joining, goal, recorded) if recorded else None
    if problem is None and not view.suspended:
        problem = _problem_of_members(view, goal, behind, update)
    if problem is None and recorded is not None:
        overdue = [
            w for w in _kept_out(view.joining, goal, recorded) if _is_late(w, recorded, view)
        ]
        problem = problem_of_joiners(overdue, recorded) if overdue else None
    return problem


def _problem_of_joiners(
    joining: Workers, goal: Checkpoint, recorded: Checkpoint
) -> RolloutProblem | None:
    """The problem that workers cannot be admitted, because they cannot load any version of the adapter
    with which they could be. They try the applied version after the goal.
    """
    out = _kept_out(joining.where(lambda f: f.refuses), goal, recorded)
    failed = [w for w in out if worker_failures.failure_of(w, recorded)]
    if not failed:
        return None
    problem = problem_of_joiners(failed, recorded)
    refused = [(w, f) for w in failed if (f := worker_failures.last_failure(w, goal))]
    if not refused or same_weights(goal, recorded):
        return problem
    worker, first = refused[0]
    before = f"{first.reason}: {first.message} ({worker.pod.name})"
    added = f" {counted(len(refused), 'worker')} refused version {goal.label} before: {before}."
    return replace(problem, message=problem.message + added)


def _kept_out(joining: Workers, goal: Checkpoint, recorded: Checkpoint) -> Workers:
    """Workers that have no version of the adapter with which they could be admitted."""
    return joining.where(lambda f: not (f.has_loaded(goal) or f.has_loaded(recorded)))


def _problem_of_members(
    view: RolloutView, goal: Checkpoint, behind: Workers, update: Update
) -> RolloutProblem | None:
    without_slots = [w for w in behind if w.state is not None and not w.takes_lora]
    if without_slots and update.is_held:
        return problem_of_slots(without_slots, goal, by_deletion=update.type == "OnDelete")
    # A rollout of base weights may hold the workers meanwhile, once.
    pause, timeouts = view.settings.pause, view.settings.timeouts
    limit = _limit_seconds(view) + timeouts.pause_seconds + pause.limit() + timeouts.load_seconds
    if not lasts(view, limit, RolloutPhase.STAGING, RolloutPhase.LOADING):
        return None
    # Workers that have joined since then may take longer.
    able = [w for w in behind if w.takes_lora and w.state and w.state.uptime_seconds > limit]
    # Pods without slots that are not kept are being replaced, which takes longer as long as new ones start.
    started = any(w.state is not None and w.state.uptime_seconds <= limit for w in view.workers)
    waiting = able or ([] if started else without_slots)
    return problem_of_late(waiting, goal) if waiting else None


def _limit_seconds(view: RolloutView) -> float:
    """How long all workers together may take, as for base weights without a barrier."""
    return view.staging_seconds() + view.settings.timeouts.load_seconds


def _is_late(worker: WorkerView, recorded: Checkpoint, view: RolloutView) -> bool:
    """Whether a worker that joins waits for the applied version for too long. No phase of the rollout
    tells this, so the time of its process counts, or that of its read.
    """
    limit = _limit_seconds(view)
    if worker.state is not None and worker_failures.pending_failure(worker, recorded):
        return worker.state.uptime_seconds + worker.state_age_seconds > limit
    running = worker.seconds_at("stage-adapter", recorded)
    return running is not None and running > limit
