"""Synchronized: stage all → pause all → load all → verify → resume all.

Two versions never generate at the same time. For on-policy training.

The strategy stores no state. It reads the state of the workers, so that an operator that starts in
the middle of a rollout takes the next step:

    members behind the goal?    all of these staged?   any of these open?   phase
    yes                         no                     -                    Staging
    yes                         yes                    yes                  Pausing
    yes                         yes                    no                   Loading
    no                          -                      some are held        Resuming
    no                          -                      none is held         Applied

Invariants of every step:
 1. A worker loads only when no member generates with older weights.
 2. A worker resumes on the goal only when every member reports the goal. This is the verification:
    the worker sets its label after the load and its check, and resume names the version again.
 3. No member stays held while others stage: workers that a superseded rollout paused resume, and those that go
    back load as soon as they have staged.

Superseded rollout (worked example). a, b and c serve 41. The desired version is 42, all three are
paused, and a has loaded 42. Now the trainer asks for 43. No worker may resume: a has 42, b and c
have 41, and 43 is not staged. b and c hold 42 in memory, so the shortest way is forward: the goal
stays 42 until all three serve it, and becomes 43 with the next step. If no worker had loaded 42,
invariant 3 would have resumed all three on 41 at once. If an engine has broken on 42, 42 is completed
only if all members have loaded it: they serve at once. If the trainer asks for 41 again, a goes
back if it can: nothing completes 42 then, least of all behind a load that hangs.

Failures:
* A worker that refuses to stage is untouched. The old weights keep serving, the worker is called
  again every 10 s, and the problem is reported.
* A worker that is late with a call (`lateness`) has failed. If more than `maxFailures` workers fail to pause
  or load, the rollout halts. The goal becomes the applied version: workers that have loaded roll back, and
  all workers serve again.
* Up to `maxFailures` failed workers are fenced, and join again when they can.
* A rollback cannot be abandoned, nor can a superseded rollout that has begun to load. There a worker is
  fenced that keeps the others paused for longer than a worker of the fleet may be (`lateness.blocking`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.core import worker_calls
from fleet_operator.core.advance import Mode
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import NO_WORKERS, Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.joining import Admission
from fleet_operator.core.lateness import blocking, is_in_time, late
from fleet_operator.core.messages import pod_names, problem_of_late, some, unready, why
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.strategies.shared import (
    Actions,
    advanced,
    begun_by,
    closed_by_load,
    may_resume,
    over_budget,
    refused_by,
    serves,
    with_joiners,
    without,
)
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import agree, counted, counted_of
from rlfleet_resources.weights_status import RolloutPhase


def step(view: RolloutView) -> Step:
    """Decide the next step of a synchronized rollout."""
    goal = _goal(view)
    behind = view.members.where(lambda f: not f.has_loaded(goal))
    if not behind:
        taken = _open(view, goal)
    elif behind.any(lambda f: not f.has_bytes(goal)):
        taken = _stage(view, goal, behind)
    elif behind.any(lambda f: f.standing is not Standing.HELD):
        taken = _pause(view, goal, behind)
    else:
        taken = _load(view, goal, behind)
    return with_joiners(view, taken, _admission(view, taken, behind))


def _goal(view: RolloutView) -> Checkpoint:
    if view.halted or (view.suspended and not view.held):
        return view.applied
    desired, current = view.desired, view.transition
    begun = Checkpoint.recorded(current) if current is not None else desired
    ahead = begun_by(view, begun)
    back = current is not None and current.back
    if ahead and not back and not _is_taken_back(view, begun) and _at_hand(view, begun):
        all_have_it = view.members.all(lambda f: f.has_loaded(begun))
        if all_have_it or not closed_by_load(view, begun):
            return begun
    if _at_hand(view, desired) and not view.is_superseded:
        return desired
    # Others may stage for long. A worker that cannot resume next to those that serve goes back meanwhile.
    astray = view.held.where(lambda f: not (f.has_loaded(view.applied) or f.operation))
    may_go_back = any(not view.failure_of(m, view.applied) for m in astray)
    goes_back = may_go_back and serves(view, view.applied)
    stays = view.suspended or view.is_superseded
    return view.applied if stays or goes_back else desired


def _is_taken_back(view: RolloutView, begun: Checkpoint) -> bool:
    """Whether the trainer asks again for what the fleet serves, and all members can go back to it."""
    asked = same_weights(view.desired, view.applied) and not same_weights(begun, view.desired)
    return asked and not any(view.failure_of(m, view.desired) for m in view.members)


def _at_hand(view: RolloutView, weights: Checkpoint) -> bool:
    return view.members.all(lambda f: f.has_loaded(weights) or f.has_bytes(weights))


def _stage(view: RolloutView, goal: Checkpoint, behind: Workers) -> Step:
    waiting = behind.where(lambda f: not f.has_bytes(goal))
    refused = refused_by(view, goal, waiting)
    overdue = late(view, "stage", goal, waiting)
    resumed = may_resume(view)
    reason = f"the rollout does not need the pause; version {view.applied.label} keeps serving"
    others = without(waiting.plus(without(view.held, waiting)), resumed)
    # On the way back, none waits for the last one to stage.
    is_back = same_weights(goal, view.applied)
    alone = view.members.all(lambda f: f.standing is Standing.HELD or f.has_loaded(goal))
    mode = Mode.LOAD if is_back and alone else Mode.KEEP
    actions: Actions = advanced(view, others, goal, mode, f"the goal is version {goal.label}")
    actions += advanced(view, resumed, view.applied, Mode.SERVE, reason)
    failed = [*refused, *without(overdue, refused)]
    # Workers that were fenced for it still count: otherwise they and the others would be fenced in turn.
    closed = without(refused_by(view, goal, view.joining), closed_by_load(view, goal))
    counted = [*failed, *closed] if failed else []
    problem = over_budget(view, goal, counted, RolloutPhase.STAGING, halt=bool(overdue))
    if failed and problem is None and len(failed) == len(waiting):
        # Those that hold their requests have the time of all holds. A fence would end these at once.
        held = [m for m in overdue if m.standing is Standing.HELD]
        actions += _drained(without(failed, without(held, refused)), goal, view)
        problem = problem_of_late(held, goal) if held else None
    # Those that wait for themselves, and those that can neither resume next to the others nor go back.
    stuck = waiting.where(lambda f: f.standing is not Standing.OPEN)
    ahead = view.held.where(lambda f: f.has_bytes(goal) and not f.has_loaded(view.applied))
    least = view.settings.longest_hold_seconds - view.settings.hold_seconds
    fenced = [
        m
        for m in blocking(view, goal, (*stuck, *without(ahead, stuck)))
        if m.standing is not Standing.HELD or m.held_seconds > least  # each waits for itself
    ]
    if goal.is_transferred:  # no worker can go back to it, so none holds up the others
        fenced = list(waiting.where(lambda f: f.standing is Standing.HELD))
    if view.held:  # they cannot resume next to a silent worker that may generate other weights
        silent = view.members.where(lambda f: f.standing is Standing.UNKNOWN)
        elsewhere = silent.where(lambda f: not f.has_loaded(view.applied))
        fenced += without(late(view, "pause", goal, elsewhere, in_phase=False), fenced)
    done = len(behind) - len(waiting)
    share = counted_of(done, len(behind), "worker", "has", "have")
    return Step(
        goal=goal,
        phase=RolloutPhase.STAGING,
        actions=actions + _fenced(fenced, goal),
        note=f"{share} staged {goal.label}{unready(waiting, goal)}",
        problem=problem,
        failed=pod_names(counted),
        holds_requests=bool(view.held),
    )


def _pause(view: RolloutView, goal: Checkpoint, behind: Workers) -> Step:
    unpaused = behind.where(lambda f: f.standing is not Standing.HELD)
    overdue = late(view, "pause", goal, unpaused)
    problem = over_budget(view, goal, overdue, RolloutPhase.PAUSING, halt=True)
    reason = f"all workers have staged version {goal.label}"
    actions = advanced(view, unpaused.plus(view.held), goal, Mode.HOLD, reason)
    fenced = (overdue or _left_behind(view, goal, unpaused)) if problem is None else []
    return Step(
        goal=goal,
        phase=RolloutPhase.PAUSING,
        actions=actions + _fenced(fenced, goal),
        note=f"waiting for {some(unpaused)} to pause",
        problem=problem,
        failed=pod_names(overdue),
        holds_requests=True,
    )


def _left_behind(view: RolloutView, goal: Checkpoint, unpaused: Workers) -> list[WorkerView]:
    """The workers to fence when requests have been held for too long: those without a pause, or those whose requests
    wait. While the first are in time, the fewer go.
    """
    by, longest = blocking(view, goal, unpaused), view.settings.longest_hold_seconds
    waited = [m for m in view.held if m.held_seconds > longest]
    fewer = len(waited) < len(by) and all(is_in_time(view, w) for w in by)
    return waited if fewer else by


def _load(view: RolloutView, goal: Checkpoint, behind: Workers) -> Step:
    refused = refused_by(view, goal, behind)
    broke = closed_by_load(view, goal)
    overdue = late(view, "load", goal, behind) or blocking(view, goal, behind)
    failed = [*refused, *broke, *without(overdue, refused)]
    problem = over_budget(view, goal, failed, RolloutPhase.LOADING, halt=True)
    loading = without(behind, failed) if problem is None else NO_WORKERS
    reason = "all workers are paused"
    actions: Actions = advanced(view, loading, goal, Mode.LOAD, reason)
    actions += advanced(view, without(view.held, loading), goal, Mode.HOLD, reason)
    if problem is None:
        actions += _fenced(without(failed, broke), goal)
    return Step(
        goal=goal,
        phase=RolloutPhase.LOADING,
        actions=actions,
        note=f"waiting for {some(behind)} to load {goal.label}",
        problem=problem,
        failed=pod_names(failed),
        holds_requests=True,
    )


def _drained(workers: Sequence[WorkerView], goal: Checkpoint, view: RolloutView) -> Actions:
    """Take failed workers out of service before others pause. Running requests may finish first."""
    return tuple(
        worker_calls.drain_out_of_service(m, view.settings, reason=why(m, goal)) for m in workers
    )


def _fenced(workers: Sequence[WorkerView], goal: Checkpoint) -> Actions:
    """Take workers out of service at once. These calls come last, so that they replace renewals."""
    return tuple(worker_calls.take_out_of_service(m, reason=why(m, goal)) for m in workers)


def _open(view: RolloutView, goal: Checkpoint) -> Step:
    held = view.held
    served_already = view.members.any(lambda f: f.standing is Standing.OPEN)
    broke = [] if served_already else closed_by_load(view, goal)
    if not held and len(broke) < len(view.joining):
        broke = []  # the rollout is over, or other workers are joining
    problem = over_budget(view, goal, broke, RolloutPhase.LOADING, halt=True)
    # A worker may still be loading an abandoned version. Its pause is renewed until it can roll back.
    reason = f"all workers have loaded {goal.label}"
    actions: Actions = advanced(view, held, goal, Mode.SERVE, reason)
    if not view.members:
        phase, note = RolloutPhase.PENDING, "no worker is admitted"
    elif held:
        phase, note = RolloutPhase.RESUMING, f"waiting for {some(held)} to resume"
    else:
        serve = agree(len(view.members), "serves", "serve")
        phase = RolloutPhase.APPLIED
        note = f"{counted(len(view.members), 'worker')} {serve} {goal.label}"
    return Step(
        goal=goal,
        phase=phase,
        actions=actions,
        note=note,
        problem=problem,
        failed=pod_names(broke),
        holds_requests=bool(held),
    )


def _admission(view: RolloutView, taken: Step, behind: Workers) -> Admission:
    """The version at which joining workers are admitted, and whether they may be admitted now."""
    goal = taken.goal
    if not view.members:
        return Admission(goal=goal, fallback=view.applied, open_now=True, no_members=True)
    if not behind:
        # Members may still be loading a superseded version. Joining workers wait until all agree.
        return Admission(goal=goal, fallback=goal, open_now=view.agrees_on(goal))
    if view.held or taken.phase is RolloutPhase.PAUSING:
        # Behind a closed latch they may load the goal together with the members, and open with them.
        # At the old version, a worker that was fenced would be admitted and fenced repeatedly.
        return Admission(goal=goal, fallback=goal, open_now=False)
    agree = view.agrees_on(view.applied)
    coming = None if taken.problem else goal
    return Admission(goal=view.applied, fallback=goal, open_now=agree, rollout_goal=coming)
