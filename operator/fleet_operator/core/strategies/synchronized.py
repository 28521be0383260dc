"""Synchronized: stage all → pause all → load all → verify → resume all.

No two versions ever generate at the same time. For on-policy training.

States are not remembered, they are read off the workers, so that an operator that starts in the
middle takes the next step:

    members behind the goal?    all of these staged?   any of these open?   phase
    yes                         no                     -                    Staging
    yes                         yes                    yes                  Pausing
    yes                         yes                    no                   Loading
    no                          -                      some are held        Resuming
    no                          -                      none are held        Applied

Invariants of every step:
 1. A worker loads only when no member generates older weights.
 2. A worker resumes on the goal only when every member reports the goal (this is the verification:
    the worker sets its label after load and probe succeeded, and resume names the version again).
 3. While staging, nobody is held: what an overtaken rollout has paused is let go.

Overtaken (worked example). a, b, c serve 41; the target is 42, all are paused, a has loaded 42;
now the trainer asks for 43. Nobody may resume: a has 42, b and c have 41, and 43 is not staged.
Since b and c hold 42 in memory, the shortest way out is forward: the goal stays 42 until all three
serve it, and becomes 43 with the next step. Had nobody loaded 42 yet, invariant 3 would have let
all three go on with 41 at once.

Failure. A refusal while staging touches nothing: the old weights go on serving, the workers are
asked again every 10 s, and the problem is said. Who serves and answers while the others pause does
not know of it and is asked again; he is late after twice the time-out, others after one. A failure while pausing or loading halts the
rollout when more workers than `maxFailures` fail: the goal becomes the applied version, so that
workers which have loaded already go back and everybody serves again. Up to `maxFailures` workers
are left behind, with their latch closed, and join again when they can. On the way back, or out of an
overtaken rollout, nothing can be given up any more: for whom the others have been holding their
requests twice as long as a rollout may take, he is left behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.counts import agree, counted, counted_of
from fleet_operator.core.identity import same_weights
from fleet_operator.core.joiners import Admission
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_operator.core.problems import names, some, unready, why
from fleet_operator.core.step import RolloutView, Step
from fleet_operator.core.strategies.shared import (
    Actions,
    broken,
    has_bytes,
    held_up,
    late,
    loaded_beside,
    over_budget,
    renew,
    source_of,
    with_joiners,
    without,
)
from fleet_worker.protocol import Phase


def step(view: RolloutView) -> Step:
    """Decide the next step of a synchronized rollout."""
    goal = _goal(view)
    behind = tuple(m for m in view.members if not m.has_loaded(goal))
    if not behind:
        taken = _open(view, goal)
    elif any(not has_bytes(m, goal) for m in behind):
        taken = _stage(view, goal, behind)
    elif any(m.standing is not Standing.HELD for m in behind):
        taken = _pause(view, goal, behind)
    else:
        taken = _load(view, goal, behind)
    return with_joiners(view, taken, _admission(view, taken, behind))


def _goal(view: RolloutView) -> Target:
    if view.halted or (view.suspended and not view.held):
        return view.applied
    ahead = [m for m in view.held if not m.goes_on_by_itself]
    loaded = loaded_beside(ahead, view.applied)
    if len(loaded) == 1 and not same_weights(loaded[0], view.target):
        (weights,) = loaded
        source = source_of(next(m for m in ahead if m.has_loaded(weights)), view)
        overtaken = Target.passing(weights, source)
        at_hand = all(m.has_loaded(overtaken) or has_bytes(m, overtaken) for m in view.members)
        if at_hand and not broken(view, overtaken):
            return overtaken
    return view.target


def _stage(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    waiting = [m for m in behind if not has_bytes(m, goal)]
    refused = [m for m in waiting if view.failure_of(m, goal)]
    overdue = late(view, RolloutPhase.STAGING, view.settings.timeouts.stage_seconds, waiting)
    actions: Actions = tuple(
        calls.stage(m, goal, view.settings, reason=f"version {goal.label} is wanted")
        for m in waiting
        if m.standing is not Standing.UNKNOWN
        and not m.is_at("stage", goal)
        and not view.failed_lately(m, goal)
    )
    failed = [*refused, *without(overdue, refused)]
    problem = over_budget(view, goal, failed, RolloutPhase.STAGING, halt=bool(overdue))
    if failed and problem is None and len(failed) == len(waiting):
        actions += _set_apart(failed, goal, view)
    left = held_up(view, [m for m in waiting if m.standing is not Standing.OPEN])
    left += without(_mute(view), left)
    held = sum(has_bytes(m, goal) for m in behind)
    share = counted_of(held, len(behind), "worker", "holds", "hold")
    return Step(
        goal=goal,
        phase=RolloutPhase.STAGING,
        actions=actions + _let_go(view) + _left_behind(left, goal),
        note=f"{share} {goal.label}{unready(waiting, goal)}",
        problem=problem,
        failed=names(failed),
        disturbed=bool(view.held),
    )


def _mute(view: RolloutView) -> list[WorkerView]:
    """Of whom nobody knows for longer than a pause may take to begin whether they generate something
    else than the applied version: beside them nobody who holds his requests can go on.
    """
    if not view.held:
        return []
    limit = view.settings.timeouts.pause_seconds
    return [
        m
        for m in view.members
        if m.standing is Standing.UNKNOWN
        and not m.has_loaded(view.applied)
        and m.silent_seconds > limit
    ]


def _pause(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    still = [m for m in behind if m.standing is not Standing.HELD]
    limit = float(view.settings.timeouts.pause_seconds)
    if view.settings.pause.mode == "Wait":
        limit += view.settings.pause.drain_timeout_seconds
    # Who serves and answers does not know of it: our call was lost, and perhaps we were away since.
    unaware = [
        m for m in still if m.state and m.state.phase is Phase.SERVING and not m.silent_seconds
    ]
    aware = without(still, unaware)
    overdue = late(view, RolloutPhase.PAUSING, limit, aware)
    overdue += late(view, RolloutPhase.PAUSING, 2 * limit, unaware)
    problem = over_budget(view, goal, overdue, RolloutPhase.PAUSING, halt=True)
    actions: Actions = tuple(
        calls.pause(m, view.settings, reason=f"all hold version {goal.label}")
        for m in still
        if m.standing is Standing.OPEN
    )
    out = (overdue or held_up(view, still)) if problem is None else []
    return Step(
        goal=goal,
        phase=RolloutPhase.PAUSING,
        actions=actions + renew(view) + _left_behind(out, goal),
        note=f"waiting for {some(still)} to pause",
        problem=problem,
        failed=names(overdue),
        disturbed=True,
    )


def _load(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    refused = [m for m in behind if view.failure_of(m, goal)]
    broke = broken(view, goal)
    overdue = late(view, RolloutPhase.LOADING, view.settings.timeouts.load_seconds, behind)
    overdue = overdue or held_up(view, behind)
    failed = [*refused, *broke, *without(overdue, refused)]
    problem = over_budget(view, goal, failed, RolloutPhase.LOADING, halt=True)
    actions: Actions = renew(view)
    if problem is None:
        asked = (m for m in without(behind, failed) if not m.operation.startswith("load"))
        loads = tuple(calls.load(m, goal, view.settings, reason="all are paused") for m in asked)
        # A renewal comes before a load, which may last longer than the lease.
        actions = loads + actions + _left_behind(without(failed, broke), goal)
    return Step(
        goal=goal,
        phase=RolloutPhase.LOADING,
        actions=actions,
        note=f"waiting for {some(behind)} to load {goal.label}",
        problem=problem,
        failed=names(failed),
        disturbed=True,
    )


def _set_apart(workers: Sequence[WorkerView], goal: Target, view: RolloutView) -> Actions:
    """Leave them behind before anybody is paused: who serves may finish his requests first."""
    return tuple(
        calls.set_apart(m, view.settings, reason=why(m, goal))
        if m.standing is Standing.OPEN
        else calls.expel(m, reason=why(m, goal))
        for m in workers
    )


def _left_behind(workers: Sequence[WorkerView], goal: Target) -> Actions:
    """Take them out of service. Of several calls to a worker the last one counts: no renewal."""
    return tuple(calls.expel(m, reason=why(m, goal)) for m in workers)


def _open(view: RolloutView, goal: Target) -> Step:
    held = view.held
    served_already = any(m.standing is Standing.OPEN for m in view.members)
    broke = [] if served_already else broken(view, goal)
    if not held and len(broke) < len(view.joiners):
        broke = []  # the rollout is over, or others are on their way
    problem = over_budget(view, goal, broke, RolloutPhase.LOADING, halt=True)
    # Who is given up while he loads still does: his pause is renewed until he has, and can go back.
    actions: Actions = renew(view) + tuple(
        calls.resume(m, reason=f"all members hold {goal.label}")
        for m in held
        if m.state is not None and not m.operation
    )
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
        failed=names(broke),
        disturbed=bool(held),
    )


def _admission(view: RolloutView, taken: Step, behind: tuple[WorkerView, ...]) -> Admission:
    """At which version joiners come in, and whether now."""
    goal = taken.goal
    if not view.members:
        return Admission(version=goal, fallback=view.applied, open_now=True, first=True)
    if not behind:
        # Those that still load what was overtaken could not open beside it, and would be held long.
        return Admission(version=goal, fallback=goal, open_now=view.agrees_on(goal))
    if view.held or taken.phase is RolloutPhase.PAUSING:
        # Their latch is closed: they may load the goal beside the members, and open with them. One
        # that was left behind would come in at the old version again and again.
        return Admission(version=goal, fallback=goal, open_now=False)
    agree = view.agrees_on(view.applied)
    coming = None if taken.problem else goal
    return Admission(version=view.applied, fallback=goal, open_now=agree, coming=coming)


def _let_go(view: RolloutView) -> Actions:
    """Let held members go on with the applied version, unless somebody generates another one."""
    applied = view.applied
    if any(m.standing is not Standing.HELD and not m.has_loaded(applied) for m in view.members):
        return renew(view)
    reason = f"nothing is left that keeps {applied.label} from serving"
    return renew(view) + tuple(
        calls.resume(m, reason=reason)
        for m in view.held
        if m.has_loaded(applied) and not m.operation
    )
