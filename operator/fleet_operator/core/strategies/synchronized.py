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
asked again every 10 s, and the problem is said. A failure while pausing or loading halts the
rollout when more workers than `maxFailures` fail: the goal becomes the applied version, so that
workers which have loaded already go back and everybody serves again. Up to `maxFailures` workers
are left behind, with their latch closed, and join again when they can.
"""

from __future__ import annotations

from fleet_operator.api.source import WeightSource, from_protocol
from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.actions import Quarantine, WorkerCall
from fleet_operator.core.joiners import Admission, join
from fleet_operator.core.observed import Standing, Target, WorkerView
from fleet_operator.core.problems import names, problem_of, some, why
from fleet_operator.core.step import Problem, RolloutView, Step

_Actions = tuple[WorkerCall | Quarantine, ...]


def step(view: RolloutView) -> Step:
    """Decide the next step of a synchronized rollout."""
    goal = _goal(view)
    behind = tuple(m for m in view.members if m.version != goal.version)
    if not behind:
        taken = _open(view, goal)
    elif any(not _has_bytes(m, goal) for m in behind):
        taken = _stage(view, goal, behind)
    elif any(m.standing is not Standing.HELD for m in behind):
        taken = _pause(view, goal, behind)
    else:
        taken = _load(view, goal, behind)
    return _with_joiners(view, taken, behind)


def _goal(view: RolloutView) -> Target:
    if view.halted:
        return view.applied
    loaded = {m.version for m in view.held} - {view.applied.version, None}
    if len(loaded) == 1 and loaded != {view.target.version}:
        (version,) = loaded
        ahead = next(m for m in view.held if m.version == version)
        overtaken = Target(version=str(version), source=_source_of(ahead, view))
        at_hand = all(m.version == version or _has_bytes(m, overtaken) for m in view.members)
        if at_hand and not _broken(view, overtaken):
            return overtaken
    return view.target


def _source_of(worker: WorkerView, view: RolloutView) -> WeightSource:
    """Where the weights of a worker came from, by its own account."""
    told = worker.state.source if worker.state else None
    return from_protocol(told) if told is not None else view.target.source


def _stage(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    waiting = [m for m in behind if not _has_bytes(m, goal)]
    refused = [m for m in waiting if calls.failure_of(m, goal.version)]
    late = _late(view, RolloutPhase.STAGING, view.settings.timeouts.stage_seconds, waiting)
    actions: _Actions = tuple(
        calls.stage(m, goal, view.settings, reason=f"version {goal.version} is wanted")
        for m in waiting
        if m.standing is not Standing.UNKNOWN
        and m.operation != f"stage {goal.version}"
        and not calls.failed_lately(m, goal.version)
    )
    failed = [*refused, *(m for m in late if m not in refused)]
    problem = _over_budget(view, goal, failed, RolloutPhase.STAGING, halt=bool(late))
    if failed and problem is None and len(failed) == len(waiting):
        actions += tuple(calls.expel(m, reason=why(m, goal)) for m in failed)
    return Step(
        goal=goal,
        phase=RolloutPhase.STAGING,
        actions=actions + _let_go(view),
        note=f"{_count(behind, goal)} of {len(behind)} workers hold {goal.version}",
        problem=problem,
        failed=names(failed),
    )


def _pause(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    still = [m for m in behind if m.standing is not Standing.HELD]
    limit = float(view.settings.timeouts.pause_seconds)
    if view.settings.pause.mode == "wait":
        limit += view.settings.pause.drain_timeout_seconds
    late = _late(view, RolloutPhase.PAUSING, limit, still)
    problem = _over_budget(view, goal, late, RolloutPhase.PAUSING, halt=True)
    actions: _Actions = tuple(
        calls.pause(m, view.settings, reason=f"all hold version {goal.version}")
        for m in still
        if m.standing is Standing.OPEN
    )
    if problem is None:
        actions += tuple(calls.expel(m, reason=why(m, goal)) for m in late)
    return Step(
        goal=goal,
        phase=RolloutPhase.PAUSING,
        actions=actions + _renew(view),
        note=f"waiting for {some(still)} to pause",
        problem=problem,
        failed=names(late),
        disturbed=True,
    )


def _load(view: RolloutView, goal: Target, behind: tuple[WorkerView, ...]) -> Step:
    refused = [m for m in behind if calls.failure_of(m, goal.version)]
    broke = _broken(view, goal)
    late = _late(view, RolloutPhase.LOADING, view.settings.timeouts.load_seconds, behind)
    failed = [*refused, *broke, *(m for m in late if m not in refused)]
    problem = _over_budget(view, goal, failed, RolloutPhase.LOADING, halt=True)
    actions: _Actions = ()
    if problem is None:
        actions = tuple(
            calls.load(m, goal, view.settings, reason="all are paused")
            for m in behind
            if m not in refused and m not in late and not m.operation.startswith("load")
        ) + tuple(calls.expel(m, reason=why(m, goal)) for m in (*refused, *late) if m not in broke)
    return Step(
        goal=goal,
        phase=RolloutPhase.LOADING,
        actions=actions + _renew(view),
        note=f"waiting for {some(behind)} to load {goal.version}",
        problem=problem,
        failed=names(failed),
        disturbed=True,
    )


def _open(view: RolloutView, goal: Target) -> Step:
    held = view.held
    served_already = any(m.standing is Standing.OPEN for m in view.members)
    broke = [] if served_already or not held else _broken(view, goal)
    problem = _over_budget(view, goal, broke, RolloutPhase.LOADING, halt=True)
    actions: _Actions = tuple(
        calls.resume(m, version=goal.version, reason=f"all members hold {goal.version}")
        for m in held
        if m.state is not None and not m.operation
    )
    if not view.members:
        phase, note = RolloutPhase.PENDING, "no worker is admitted"
    elif held:
        phase, note = RolloutPhase.RESUMING, f"waiting for {some(held)} to resume"
    else:
        phase, note = RolloutPhase.APPLIED, f"{len(view.members)} workers serve {goal.version}"
    return Step(
        goal=goal,
        phase=phase,
        actions=actions,
        note=note,
        problem=problem,
        failed=names(broke),
        disturbed=bool(held),
    )


def _broken(view: RolloutView, goal: Target) -> list[WorkerView]:
    """Workers that a load of the goal has closed: members no more, but failures of this rollout."""
    loads = ((j, j.state.load_failure) for j in view.joiners if j.state)
    return [j for j, failure in loads if failure and failure.version == goal.version]


def _with_joiners(view: RolloutView, taken: Step, behind: tuple[WorkerView, ...]) -> Step:
    admission = _admission(view, taken, behind)
    joining = join(view.joiners, admission, view.settings)
    return Step(
        goal=taken.goal,
        phase=taken.phase,
        actions=taken.actions + joining.actions,
        note=taken.note,
        problem=taken.problem or joining.problem,
        failed=taken.failed,
        disturbed=taken.disturbed,
        requeue_after_seconds=joining.requeue_after_seconds,
    )


def _admission(view: RolloutView, taken: Step, behind: tuple[WorkerView, ...]) -> Admission:
    """At which version joiners come in, and whether now."""
    goal = taken.goal
    if not view.members:
        return Admission(version=goal, fallback=view.applied, open_now=True, first=True)
    if not behind:
        return Admission(version=goal, fallback=goal, open_now=True)
    if view.held:
        # Their latch is closed: they may load the goal beside the members, and open with them.
        return Admission(version=goal, fallback=goal, open_now=False)
    with_one_voice = all(m.version == view.applied.version for m in view.members)
    return Admission(version=view.applied, fallback=goal, open_now=with_one_voice)


def _let_go(view: RolloutView) -> _Actions:
    """Let held members go on with the applied version, unless somebody generates another one."""
    applied = view.applied.version
    if any(m.standing is not Standing.HELD and m.version != applied for m in view.members):
        return _renew(view)
    return tuple(
        calls.resume(
            m, version=applied, reason=f"nothing is left that keeps {applied} from serving"
        )
        for m in view.held
        if m.version == applied and not m.operation
    ) + _renew(view, but=applied)


def _renew(view: RolloutView, *, but: str | None = None) -> _Actions:
    return tuple(
        calls.pause(m, view.settings, reason="the rollout needs longer than the pause lease")
        for m in view.held
        if m.version != but and calls.needs_renewal(m)
    )


def _over_budget(
    view: RolloutView, goal: Target, failed: list[WorkerView], phase: RolloutPhase, *, halt: bool
) -> Problem | None:
    if len(failed) <= view.settings.max_failures:
        return None
    if goal.version != view.target.version or view.halted:
        # The way back, or out of an overtaken rollout, must not be given up: who fails is fenced.
        return None
    return problem_of(failed, goal, phase, view.settings, halt=halt)


def _late(
    view: RolloutView,
    phase: RolloutPhase,
    limit_seconds: float,
    workers: list[WorkerView] | tuple[WorkerView, ...],
) -> list[WorkerView]:
    if view.phase is not phase or view.phase_seconds <= limit_seconds:
        return []
    return list(workers)


def _has_bytes(worker: WorkerView, goal: Target) -> bool:
    return worker.staged_version == goal.version or worker.operation == f"load {goal.version}"


def _count(workers: tuple[WorkerView, ...], goal: Target) -> int:
    return sum(_has_bytes(w, goal) for w in workers)
