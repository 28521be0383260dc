"""The strategies without a barrier: each worker swaps by itself, in one call.

    worker                                         next
    behind, has not staged                         Stage
    behind, has staged, another may be away        Apply (pause, load and resume in one call)
    swaps                                          no call: a swap ends without the operator
    held without a swap (by a former leader)       finish the swap, or resume

The strategies differ only in how many workers may be away at once. Where this is bounded, the
workers with the fewest sessions go first, then those with the lowest ordinal. They hold up the fewest
clients. Routers send new sessions to them, which then begin on the new version.

A worker that is missing or held is away. A pod behind a scheduling gate is not counted: its queue may
hold it back for days, and the other workers would keep the old version meanwhile.

Failures:
* A worker that refuses to stage stops new swaps, and keeps serving. The problem is reported. The same holds for
  one that reads for too long after others have swapped. Before, its version is abandoned.
* A swap that fails in the engine counts against `maxFailures`. Beyond that the rollout halts. With
  `onFailure: Halt` each worker keeps the version that it has, so that two versions serve. With
  `Rollback` the goal is the applied version.
* A swap that takes too long is fenced while `maxFailures` allows it. Beyond that the cause is hardly a single
  worker, and its end may come: each is fenced later, by the limit of all holds (`lateness.working_too_long`).
* Up to `maxFailures` workers keep the version that they have. Once all others have swapped, they
  swap again after 10 s, or after 90 s if their engine has broken.

Stalled reports these cases, and also when no other worker can swap, when too few workers
serve for a swap, and when swaps keep failing. If too few workers serve because others cannot join,
it reports the reason why they cannot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from operator import attrgetter

from fleet_operator.core import worker_calls
from fleet_operator.core.actions import Apply
from fleet_operator.core.advance import Mode
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import NO_WORKERS, Facts, Workers
from fleet_operator.core.joining import Admission
from fleet_operator.core.lateness import lasts, late
from fleet_operator.core.messages import (
    pod_names,
    problem_of_missing,
    problem_of_stragglers,
    some,
    unready,
    why,
)
from fleet_operator.core.strategies.base import RolloutView, Step
from fleet_operator.core.strategies.shared import (
    Actions,
    advanced,
    closed_by_load,
    failed_to_load,
    over_budget,
    refused_by,
    with_joiners,
    without,
)
from fleet_operator.core.worker_view import Standing, WorkerView
from fleet_operator.counts import counted_of
from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

ENGINE_RESTS_SECONDS = 90.0
_UNDER_WAY = frozenset({RolloutPhase.STAGING, RolloutPhase.LOADING})


def step_towards(view: RolloutView, *, at_once: int | None) -> Step:
    """Decide the next step. `at_once`: how many workers may be away; None means all."""
    goal = view.applied if view.halted else view.desired
    stays = view.suspended or (view.halted and view.settings.on_failure == "Halt")
    lacking = view.members.where(lambda f: _is_behind(f, goal))
    behind = NO_WORKERS if stays else lacking
    refused = refused_by(view, goal, behind)
    closed = closed_by_load(view, goal)
    swapping = behind.where(lambda f: f.is_doing("apply", goal))
    stuck = late(view, "apply", goal, swapping, in_phase=False)
    waiting = behind.where(lambda f: not f.has_bytes(goal))
    stages = view.phase is RolloutPhase.STAGING
    overdue = late(view, "stage", goal, waiting, in_phase=stages)
    failed = list({m.pod.uid: m for m in (*refused, *closed, *stuck, *overdue)}.values())
    phase = _phase(view, goal, behind, closed)
    halt = bool(closed or stuck or (overdue and stages) or failed_to_load(view, goal, refused))
    under_way = behind or view.phase in _UNDER_WAY
    problem = over_budget(view, goal, failed, phase, halt=halt) if under_way else None
    idle = waiting.where(lambda f: f.standing is Standing.OPEN)
    # A pause without a swap: of a swap that has failed, or of a barrier before. It ends with its lease at the
    # latest: nothing else limits it, for example while the resume waits for a write that is refused.
    ends = "the rollout does not need the pause"
    actions: Actions = advanced(view, view.held, goal, Mode.SERVE, ends, renews=False)
    actions += advanced(view, idle, goal, Mode.KEEP, f"the goal is version {goal.label}")
    if problem is None or not problem.halt:  # workers that only ignored the call get it again
        able = without(behind, failed) if problem is None else NO_WORKERS
        actions += _swapped(view, goal, able or _again(view, goal, refused), at_once)
    if problem is None:
        actions += tuple(worker_calls.take_out_of_service(m, reason=why(m, goal)) for m in stuck)
    stopped = stays or problem is not None
    all_failed = bool(behind) and not without(behind, failed)
    if all_failed:
        problem = problem or problem_of_stragglers(behind, goal)
    beyond = behind if _lasts_too_long(view, at_once) else NO_WORKERS
    missing = view.replicas - view.members.count(lambda f: f.standing is Standing.OPEN)
    blocked = at_once is not None and missing >= at_once
    if beyond and not blocked:
        problem = problem or problem_of_stragglers(beyond, goal)
    taken = Step(
        goal=goal,
        phase=phase,
        actions=actions,
        note=_note(view, goal, lacking, behind),
        problem=problem,
        failed=pod_names(failed),
        holds_requests=behind.any(lambda f: _is_away(f) or bool(f.operation))
        or any(isinstance(a, Apply) for a in actions),
    )
    step = with_joiners(view, taken, _admission(view, goal, stopped=stopped))
    if closed and not behind and under_way and step.problem is None:
        # They serve an older version again in a moment, and then they count as behind.
        step = replace(step, problem=problem_of_stragglers(closed, goal))
    if beyond and blocked and at_once is not None and step.problem is None:
        # Workers that cannot join are a cause of the wait, so their problem comes before it.
        waits = problem_of_missing(missing, at_once, beyond, goal)
        return replace(step, problem=waits)
    return step


def _is_behind(worker: Facts, goal: Checkpoint) -> bool:
    """Whether it must still swap. A worker that loads other weights names its old ones until it has."""
    return not worker.has_loaded(goal) or worker.loads_others_than(goal)


def _again(view: RolloutView, goal: Checkpoint, refused: Sequence[WorkerView]) -> Workers:
    """The failed workers that may retry now. One that serves rests for longer after its engine has broken: each
    attempt takes it from its clients.
    """
    rested = (w for w in refused if not view.failed_lately(w, goal))
    broke = {w.pod.uid for w in failed_to_load(view, goal, refused)}
    return Workers(
        [w for w in rested if w.pod.uid not in broke or _age_seconds(w) >= ENGINE_RESTS_SECONDS]
    )


def _age_seconds(worker: WorkerView) -> float:
    """The age of the last failed load."""
    failure = worker.state.load_failure if worker.state is not None else None
    return inf if failure is None else failure.age_seconds + worker.state_age_seconds


def _swapped(view: RolloutView, goal: Checkpoint, behind: Workers, at_once: int | None) -> Actions:
    # One that drains leaves, and would take the turn of another.
    ready = behind.where(
        lambda f: f.standing is Standing.OPEN and f.has_staged(goal) and not f.pod.drains
    )
    idle: Sequence[WorkerView] = ready.where(lambda f: not f.operation and not _is_away(f))
    if at_once is not None:
        # Workers beyond the replicas and workers that drain will go: they do not count.
        kept = view.members.where(lambda f: not f.pod.drains)
        admitted = min(kept.count(lambda f: f.standing is Standing.OPEN), view.replicas)
        swapping = {m.pod.uid for m in (*without(ready, idle), *kept.where(_may_swap))}
        serving = admitted - len(swapping)
        away = view.replicas - serving
        idle = sorted(idle, key=attrgetter("sessions"))[: max(0, at_once - away)]
    return advanced(view, idle, goal, Mode.SERVE, f"it has staged version {goal.label}")


def _admission(view: RolloutView, goal: Checkpoint, *, stopped: bool) -> Admission:
    if not view.members and not view.halted and not view.suspended:
        return Admission(
            goal=goal, fallback=view.applied, open_now=True, no_members=True, allows_mixing=True
        )
    version = view.applied if stopped else goal
    return Admission(goal=version, fallback=view.applied, open_now=True, allows_mixing=True)


def _phase(
    view: RolloutView, goal: Checkpoint, behind: Workers, closed: Sequence[WorkerView]
) -> RolloutPhase:
    if not view.members:
        return RolloutPhase.PENDING
    if closed and not behind and view.phase in _UNDER_WAY:
        return RolloutPhase.LOADING  # otherwise it would be applied between two attempts
    if not behind:
        # A swap to other weights ends by itself.
        resumes = view.held.any(lambda f: not f.is_doing("apply"))
        return RolloutPhase.RESUMING if resumes else RolloutPhase.APPLIED
    # A swap that failed does not set the phase back: otherwise the rollout would never be late.
    begun = view.phase is RolloutPhase.LOADING or len(behind) < len(view.members)
    begun |= behind.any(lambda f: f.is_doing("apply", goal) or f.standing is Standing.HELD)
    return RolloutPhase.LOADING if begun else RolloutPhase.STAGING


def _is_away(worker: Facts) -> bool:
    """Whether the worker is held, or a call to swap is on its way to it."""
    return worker.standing is Standing.HELD or worker.is_called_to("apply")


def _may_swap(worker: Facts) -> bool:
    """Whether an open worker may be swapping: it was called to, or its phase is of a newer release."""
    asked = worker.is_called_to("apply") or worker.is_doing("apply")
    return worker.standing is Standing.OPEN and (asked or not isinstance(worker.phase, Phase))


def _lasts_too_long(view: RolloutView, at_once: int | None) -> bool:
    """Whether a rollout lasts longer than all of its groups together may. It continues."""
    timeouts, groups = view.settings.timeouts, ceil(view.replicas / (at_once or view.replicas or 1))
    return lasts(view, view.staging_seconds() + groups * timeouts.load_seconds, *_UNDER_WAY)


def _note(view: RolloutView, goal: Checkpoint, lacking: Workers, behind: Workers) -> str:
    if not view.members:
        return "no worker is admitted"
    done = len(view.members) - len(lacking)
    share = counted_of(done, len(view.members), "worker", "serves", "serve")
    rest = f"; next: {some(behind)}{unready(behind, goal)}" if behind else ""
    return f"{share} {goal.label}{rest}"
