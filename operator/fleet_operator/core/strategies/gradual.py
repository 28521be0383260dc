"""Strategies without a barrier: workers swap one by one, each by itself, in one call.

    worker                                    next
    behind, does not hold the bytes           Stage
    behind, holds them, somebody may go       Apply (pause, load, resume in one)
    swapping                                  leave it alone; it goes on whoever dies
    held without work (an older leader's)     finish what was begun, or let it go

How many may be away at once is all in which these strategies differ. A worker that is missing or
held counts as away. A pod behind a scheduling gate counts as not there at all: its queue may hold it
back for days, and the others would keep the old version meanwhile.

Failure. A refusal while staging stops new swaps and is said; who serves goes on serving. A swap
that fails inside the engine counts against `maxFailures`; beyond it the rollout halts: with `Halt`
everybody stays where he is, two versions go on serving, and it is said; with `Rollback` the goal is
the applied version again. Those that may fail go on serving what they have; when nobody else is
left to swap, it is said. So it is when too few serve for anybody to go, and when a swap comes to
nothing again and again.
"""

from __future__ import annotations

from math import ceil

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Apply
from fleet_operator.core.counts import counted_of
from fleet_operator.core.joiners import Admission
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_operator.core.problems import (
    names,
    problem_of_missing,
    problem_of_stragglers,
    some,
    unready,
    why,
)
from fleet_operator.core.step import Problem, RolloutView, Step
from fleet_operator.core.strategies.shared import (
    Actions,
    broken,
    has_bytes,
    is_held_too_long,
    late,
    over_budget,
    renew,
    with_joiners,
    without,
)
from fleet_worker.protocol import Phase


def step_towards(view: RolloutView, *, at_once: int | None) -> Step:
    """Decide the next step. `at_once`: how many workers may be away; None means all."""
    goal = view.applied if view.halted else view.target
    stays = view.suspended or (view.halted and view.settings.on_failure == "Halt")
    behind = () if stays else tuple(m for m in view.members if not m.has_loaded(goal))
    refused = [m for m in behind if view.failure_of(m, goal)]
    lost = broken(view, goal)
    stuck = [m for m in behind if _is_stuck(m, goal, view)]
    waiting = [m for m in behind if not has_bytes(m, goal)]
    overdue = late(view, RolloutPhase.STAGING, view.settings.timeouts.stage_seconds, waiting)
    failed = list({m.pod.uid: m for m in (*refused, *lost, *stuck, *overdue)}.values())
    phase = _phase(view, goal, behind)
    halt = bool(lost or stuck or overdue)
    under_way = behind or view.phase in {RolloutPhase.STAGING, RolloutPhase.LOADING}
    problem = over_budget(view, goal, failed, phase, halt=halt) if under_way else None
    actions = _tidied(view, goal, behind) + _staged(view, goal, waiting)
    if problem is None:
        actions += _swapped(view, goal, without(behind, failed), at_once)
        actions += tuple(calls.expel(m, reason=why(m, goal)) for m in stuck)
    stopped = stays or problem is not None
    left_behind = bool(behind) and not without(behind, failed)
    if left_behind:
        problem = problem or problem_of_stragglers(behind, goal)
    problem = problem or _problem_of_the_slow(view, goal, behind, at_once)
    taken = Step(
        goal=goal,
        phase=phase,
        actions=actions,
        note=_note(view, goal, behind),
        problem=problem,
        failed=names(failed),
        disturbed=any(_is_away(m) or m.operation for m in behind)
        or any(isinstance(a, Apply) for a in actions),
    )
    return with_joiners(view, taken, _admission(view, goal, stopped=stopped))


def _staged(view: RolloutView, goal: Target, waiting: list[WorkerView]) -> Actions:
    return tuple(
        calls.stage(m, goal, view.settings, reason=f"version {goal.label} is wanted")
        for m in waiting
        if m.standing is Standing.OPEN
        and not m.is_at("stage", goal)
        and not _was_asked_to_swap(m)
        and not view.failed_lately(m, goal)
    )


def _swapped(
    view: RolloutView, goal: Target, behind: list[WorkerView], at_once: int | None
) -> Actions:
    ready = [m for m in behind if m.standing is Standing.OPEN and m.has_staged(goal)]
    idle = [m for m in ready if not m.operation and not _is_away(m)]
    if at_once is not None:
        # Those beyond the replicas, and those that drain, are about to go: they do not count.
        kept = [m for m in view.members if m.pod.drains_since is None]
        there = min(sum(m.standing is Standing.OPEN for m in kept), view.replicas)
        swapping = {m.pod.uid for m in (*without(ready, idle), *filter(_may_swap, kept))}
        serving = there - len(swapping)
        away = view.replicas - serving
        idle = idle[: max(0, at_once - away)]
    reason = f"it holds version {goal.label}"
    return tuple(calls.apply(m, goal, view.settings, reason=reason) for m in idle)


def _tidied(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Actions:
    """Open, or bring to the end, what somebody has paused and left."""
    uids, slow = {m.pod.uid for m in behind}, is_held_too_long(view)
    actions = [*renew(view)]  # also of what another strategy has begun: it has no end of its own
    for member in view.held:
        if member.operation or member.state is None or member.call.startswith("apply"):
            continue
        if member.pod.uid in uids and member.has_staged(goal) and not slow:
            reason = "its swap was begun"
            actions.append(calls.load(member, goal, view.settings, reason=reason))
        else:
            reason = "nothing is left that it should wait for"
            actions.append(calls.resume(member, reason=reason))
    return tuple(actions)


def _admission(view: RolloutView, goal: Target, *, stopped: bool) -> Admission:
    if not view.members and not view.halted and not view.suspended:
        return Admission(version=goal, fallback=view.applied, open_now=True, first=True, mixed=True)
    version = view.applied if stopped else goal
    return Admission(version=version, fallback=view.applied, open_now=True, mixed=True)


def _phase(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> RolloutPhase:
    if not view.members:
        return RolloutPhase.PENDING
    if not behind:
        return RolloutPhase.RESUMING if view.held else RolloutPhase.APPLIED
    # A swap that came to nothing does not make it begin anew: it would never be late.
    begun = view.phase is RolloutPhase.LOADING or len(behind) < len(view.members)
    begun |= any(m.is_at("apply", goal) or m.standing is Standing.HELD for m in behind)
    return RolloutPhase.LOADING if begun else RolloutPhase.STAGING


def _is_away(worker: WorkerView) -> bool:
    """Whether it holds its requests, or was asked to swap and perhaps does not know it yet."""
    return worker.standing is Standing.HELD or worker.call.startswith("apply")


def _may_swap(worker: WorkerView) -> bool:
    """Whether it may be swapping although its latch is open: it was asked to, or its phase is one of
    a newer release.
    """
    if worker.standing is not Standing.OPEN or worker.state is None:
        return False
    return _was_asked_to_swap(worker) or not isinstance(worker.state.phase, Phase)


def _was_asked_to_swap(worker: WorkerView) -> bool:
    return worker.call.startswith("apply") or worker.operation.startswith("apply")


def _is_stuck(worker: WorkerView, goal: Target, view: RolloutView) -> bool:
    """Whether its swap has lasted longer than a load may; also if it does not answer meanwhile.

    The age of its last answer does not count: a worker that was not asked since may have ended its
    swap, and would be given up although it serves.
    """
    if not worker.is_at("apply", goal) or worker.state is None:
        return False
    operation = worker.state.operation
    seconds = (operation.running_seconds if operation else 0) + worker.silent_seconds
    drain = view.settings.pause.drain_timeout_seconds if view.settings.pause.mode == "Wait" else 0
    return seconds > view.settings.timeouts.load_seconds + drain


def _problem_of_the_slow(
    view: RolloutView, goal: Target, behind: tuple[WorkerView, ...], at_once: int | None
) -> Problem | None:
    """What is to be said of a rollout that lasts longer than all of its groups may, one after the
    other. It goes on all the same.
    """
    timeouts, groups = view.settings.timeouts, ceil(view.replicas / (at_once or view.replicas or 1))
    limit = timeouts.stage_seconds + groups * timeouts.load_seconds
    if not (
        late(view, RolloutPhase.STAGING, limit, behind)
        or late(view, RolloutPhase.LOADING, limit, behind)
    ):
        return None
    missing = view.replicas - sum(m.standing is Standing.OPEN for m in view.members)
    if at_once is not None and missing >= at_once:
        return problem_of_missing(missing, at_once, behind, goal)
    return problem_of_stragglers(behind, goal)


def _note(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> str:
    if not view.members:
        return "no worker is admitted"
    done = len(view.members) - len(behind)
    share = counted_of(done, len(view.members), "worker", "serves", "serve")
    told = f"{share} {goal.label}"
    return f"{told}; next: {some(behind)}{unready(behind, goal)}" if behind else told
