"""The one rule of lateness: how long a call may take, and how long workers may hold their requests.

Each worker has one timer for a call and its goal:

    the worker                          its time
    works on it                         that of this work, and its silence since then
    answers, and works on nothing       since its turn came, or its process began
    answers, and serves during a pause  none: it has missed the call, and gets it again
    is silent                           since its turn came, or its silence if that is longer

It is late when this is longer than the limit of the call. As long must this leader have watched the phase: a
former one may have called late. Once all workers together had one limit more, each of them is late whose turn
came one limit ago: one that restarts in each attempt would never be.

Its turn comes with the phase, but after the end of a load, a swap or a fence that is not about the goal and in
time itself. A phase waits for one swap and one fence at most. A worker whose pod drains gets no such calls.
A pause needs no such end.

    call        its limit                           all workers together
    stage       `stageSeconds`                      the limit for each group of `maxStaging`
    pause       `pauseSeconds` and the drain        the limit
    load        `loadSeconds`                       the limit
    apply       `loadSeconds` and the drain         no limit: each worker swaps by itself

No barrier waits for a worker that joins. So if its own work takes longer than the limit, it is only reported.

A fleet has one limit for holding requests, `Rollout.longest_hold_seconds`, whatever they wait for: a rollback
has no phase that could be late. The workers that block others without working in time go one rollout earlier.
Phases begin again with each newer version, each lost answer, and each leader.
A pause does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.facts import Facts, Workers
from fleet_operator.core.identity import same_weights
from fleet_operator.core.problems import Problem
from fleet_operator.core.strategies.base import RolloutView
from fleet_operator.core.work import TAKES_TIME, Work, WorkKind
from fleet_operator.core.worker_view import WorkerView
from fleet_operator.counts import agree, counted
from fleet_worker.protocol import Phase
from rlfleet_resources.reasons import ConditionReason
from rlfleet_resources.weights_status import RolloutPhase

_CALLED_IN: dict[WorkKind, RolloutPhase] = {
    "stage": RolloutPhase.STAGING,
    "pause": RolloutPhase.PAUSING,
    "load": RolloutPhase.LOADING,
}
_JOINS_BY: tuple[WorkKind, ...] = ("stage", "load")
_NAMED_AT_MOST = 3


def lasts(view: RolloutView, seconds: float, *phases: RolloutPhase) -> bool:
    """Whether the recorded phase is one of these and has lasted longer than this."""
    return view.phase in phases and view.phase_seconds > seconds


def late(
    view: RolloutView,
    kind: WorkKind,
    goal: Checkpoint,
    workers: Sequence[WorkerView],
    *,
    in_phase: bool = True,
) -> list[WorkerView]:
    """The workers that should have followed a call by now.

    `in_phase`: the call belongs to a phase of the desired version, which may be over. Otherwise only the work that
    workers report counts, and their silence.
    """
    limit, swap_limit = _limit_seconds(view, kind), _limit_seconds(view, "apply")
    waited, had_more = 0.0, False
    if in_phase:
        together, phase = view.staging_seconds() if kind == "stage" else limit, _CALLED_IN[kind]
        if not (lasts(view, limit, phase) and _has_phases(view, goal)):
            return []
        waited, had_more = (
            view.phase_seconds - together + limit,
            lasts(view, together + limit, phase),
        )
    weights = None if kind == "pause" else goal
    swaps = {f: f.is_doing("apply", goal) for f in Workers.of(workers).kinds}
    works = {f: swaps[f] or f.is_doing(kind, weights) for f in swaps}
    found = []
    for worker in workers:
        facts = worker.facts
        free = inf if works[facts] or weights is None else _free_seconds(view, worker, weights)
        free = max(free, view.phase_seconds - swap_limit - _limit_seconds(view, "fence"))
        seconds = _seconds(worker, min(waited, free), works=works[facts], may_miss=kind == "pause")
        is_late = seconds > (swap_limit if swaps[facts] else limit)
        if is_late or (had_more and free > limit and not swaps[facts]):
            found.append(worker)
    return found


def _free_seconds(view: RolloutView, worker: WorkerView, goal: Checkpoint) -> float:
    """For how long a worker could have followed a call for the goal: since the end of other work that was in time."""
    facts, ended = worker.facts, worker.ended
    is_called = facts.call is not None and _is_other(facts.call, goal)
    if facts.pod.drains or (is_called and facts.operation is None):
        return 0.0
    if ended is None or not _is_other(ended.work, goal):
        return inf
    in_time = ended.running_seconds <= _limit_seconds(view, ended.work.kind)
    return view.clock_seconds - ended.seen_at if in_time else inf


def _is_other(work: Work, goal: Checkpoint) -> bool:
    """Whether this is a load, a swap or a fence that is not about the goal."""
    about_it = (work.version, work.run_id) == (goal.version, goal.run_id)
    return work.kind in TAKES_TIME and not about_it


def _has_phases(view: RolloutView, goal: Checkpoint) -> bool:
    """Whether the recorded phase is one on the way to these weights."""
    return same_weights(goal, view.desired) and not view.is_superseded


def _seconds(worker: WorkerView, waited: float, *, works: bool, may_miss: bool) -> float:
    """The time of a worker. `waited`: since its turn came. `works`: it works on the call. `may_miss`: a worker
    that answers and serves has missed the call.

    The age of its last answer does not count: a worker that got no call since then may have ended its work.
    """
    state, silent = worker.state, worker.silent_seconds
    if works and state is not None and state.operation is not None:
        return state.operation.running_seconds + silent
    if silent or state is None:
        return max(waited, silent)
    return 0.0 if may_miss and state.phase is Phase.SERVING else min(waited, state.uptime_seconds)


def _limit_seconds(view: RolloutView, kind: str) -> float:
    timeouts, drain_seconds = view.settings.timeouts, view.settings.pause.limit()
    limits: dict[str, float] = {
        "stage": timeouts.stage_seconds,
        "pause": timeouts.pause_seconds + drain_seconds,
        "apply": timeouts.load_seconds + drain_seconds,
    }
    return limits.get(kind, timeouts.load_seconds)


def is_in_time(view: RolloutView, worker: WorkerView) -> bool:
    """Whether the worker works on something that is not late itself, or waits for its next call, and ignores none about base
    weights.
    """
    work = worker.state.operation if worker.state is not None else None
    if work is None:
        return not (worker.silent_seconds or any(u.work.adapter is None for u in worker.unheeded))
    return work.running_seconds + worker.silent_seconds <= _limit_seconds(view, work.kind)


def blocking(view: RolloutView, goal: Checkpoint, by: Sequence[WorkerView]) -> list[WorkerView]:
    """The workers, if a member has held its requests for them for too long; otherwise none. On the way to other weights
    than the desired ones no phase is late. There those that are silent, ignore calls or are late with their work go
    earlier, by the time of one rollout. The others may have to go back then, and need this time.
    """
    if not by:
        return []
    held = max((m.held_seconds for m in view.held), default=0.0)
    left = view.settings.longest_hold_seconds - held
    if left < 0:
        return list(by)
    if left >= view.settings.hold_seconds or _has_phases(view, goal):
        return []
    return [w for w in by if not is_in_time(view, w)]


def working_too_long(view: RolloutView, workers: Sequence[WorkerView]) -> list[WorkerView]:
    """Those of the workers whose work is late, and which hold their requests until it ends. A fence closes the
    latch at once, and ends after the work, so it must come by the time of one rollout before the requests are held
    too long.
    """
    limit = view.settings.longest_hold_seconds - view.settings.hold_seconds
    held = [(w, w.state.operation) for w in workers if w.held_seconds > limit and w.state]
    return [
        w
        for w, work in held
        if work and work.running_seconds + w.silent_seconds > _limit_seconds(view, work.kind)
    ]


def problems_of_joining(view: RolloutView) -> tuple[Problem, ...]:
    """The problem that joining workers read or load weights for longer than that may take; empty without any."""
    late = [w for w in view.joining.where(_reads) if _overruns(view, w)]
    if not late:
        return ()
    works = [f"{w.pod.name} ({w.operation})" for w in late[:_NAMED_AT_MOST]]
    more = f" and {len(late) - len(works)} more" if len(late) > len(works) else ""
    number = len(late)
    return (
        Problem(
            part="joining workers",
            reason=ConditionReason.DEADLINE_EXCEEDED,
            message=(
                f"{counted(number, 'worker')} {agree(number, 'takes', 'take')} longer to join than rollout.timeouts "
                f"{agree(number, 'allows it', 'allows them')}, and {agree(number, 'gets', 'get')} no requests until "
                f"then: {', '.join(works)}{more}. Look at the logs of these pods and at the store. Delete a pod that "
                "hangs, or raise stageSeconds or loadSeconds"
            ),
            # The rollout of a fleet with members ends without these workers. `Stalled` would end its trainer's wait.
            concerns_weights=not view.members
            and any(w.is_doing(kind, view.desired) for w in late for kind in _JOINS_BY),
            adapter="",
        ),
    )


def _reads(worker: Facts) -> bool:
    return any(worker.is_doing(kind) for kind in _JOINS_BY)


def _overruns(view: RolloutView, worker: WorkerView) -> bool:
    work = worker.state.operation if worker.state else None
    return work is not None and (
        work.running_seconds + worker.state_age_seconds > _limit_seconds(view, work.kind)
    )
