"""The one rule of lateness: how long a call may take, and how long workers may hold their requests.

Each worker has one timer for a call and its goal:

    the worker                          its time
    works on it                         that of this work, and its silence since then
    answers, and works on nothing       since its turn came, or its process began
    is silent                           since its turn came, or its silence if that is longer

It is late when this is longer than the limit of the call. As long must this leader have watched the phase: a
former one may have called late. Once all workers together had one limit more, each of them is late: one that
restarts in each attempt would never be.

    call        its limit                           all workers together
    stage       `stageSeconds`                      the limit for each group of `maxStaging`
    pause       `pauseSeconds` and the drain        the limit
    load        `loadSeconds`                       the limit
    apply       `loadSeconds` and the drain         no limit: each worker swaps by itself

A fleet has one limit for holding requests, `Rollout.longest_hold_seconds`, whatever they wait for: a rollback
has no phase that could be late. Phases begin again with each newer version, each lost answer, and each leader.
A pause does not.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.strategies.base import RolloutView
from fleet_operator.core.work import WorkKind
from fleet_operator.core.worker_view import WorkerView
from rlfleet_resources.weights_status import RolloutPhase

_CALLED_IN: dict[WorkKind, RolloutPhase] = {
    "stage": RolloutPhase.STAGING,
    "pause": RolloutPhase.PAUSING,
    "load": RolloutPhase.LOADING,
}


def lasts(view: RolloutView, seconds: float, *phases: RolloutPhase) -> bool:
    """Whether the recorded phase is one of these and has lasted longer than this."""
    return view.phase in phases and view.phase_seconds > seconds


def late(
    view: RolloutView, kind: WorkKind, goal: Checkpoint, workers: Sequence[WorkerView]
) -> list[WorkerView]:
    """The workers that should have followed a call to `stage`, `pause` or `load` by now."""
    limit, phase = _limit_seconds(view, kind), _CALLED_IN[kind]
    if not lasts(view, limit, phase):
        return []
    together = view.staging_seconds() if kind == "stage" else limit
    waited, had_more = view.phase_seconds - together + limit, lasts(view, together + limit, phase)
    return [
        w
        for w in workers
        if is_late(view, kind, goal, w, waited) or (had_more and not w.is_doing("apply", goal))
    ]


def is_late(
    view: RolloutView, kind: WorkKind, goal: Checkpoint, worker: WorkerView, waited: float = 0.0
) -> bool:
    """Whether the time of this worker is longer than the limit of the call. `waited`: since its turn came.

    The age of its last answer does not count: a worker that got no call since then may have ended its work.
    """
    kind = "apply" if worker.is_doing("apply", goal) else kind
    weights = None if kind == "pause" else goal
    state, seconds = worker.state, max(waited, worker.silent_seconds)
    if state is not None and state.operation and worker.is_doing(kind, weights):
        seconds = state.operation.running_seconds + worker.silent_seconds
    elif state is not None and not worker.silent_seconds:
        seconds = min(waited, state.uptime_seconds)
    return seconds > _limit_seconds(view, kind)


def _limit_seconds(view: RolloutView, kind: str) -> float:
    timeouts, drain_seconds = view.settings.timeouts, view.settings.pause.limit()
    limits: dict[str, float] = {
        "stage": timeouts.stage_seconds,
        "pause": timeouts.pause_seconds + drain_seconds,
        "apply": timeouts.load_seconds + drain_seconds,
    }
    return limits.get(kind, timeouts.load_seconds)


def blocking(view: RolloutView, by: Sequence[WorkerView]) -> list[WorkerView]:
    """The workers, if a member has held its requests for them for too long; otherwise none."""
    longest = max((m.held_seconds for m in view.held), default=0.0)
    return list(by) if longest > view.settings.longest_hold_seconds else []


def works_too_long(view: RolloutView, worker: WorkerView) -> bool:
    """Whether a worker holds its requests until its work ends, and this work is late. A fence waits for its
    end, so it must come by the time of one rollout before the requests are held too long.
    """
    work, settings = worker.state and worker.state.operation, view.settings
    if not work or worker.held_seconds <= settings.longest_hold_seconds - settings.hold_seconds:
        return False
    return work.running_seconds + worker.silent_seconds > _limit_seconds(view, work.kind)
