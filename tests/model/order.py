"""Promise 15: a swap without a barrier goes by fewest sessions, and as soon as it may.

Checked at each decision, by the states that the leader knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fleet_operator.core.actions import Apply
from fleet_operator.core.percentages import at_most
from fleet_operator.core.pod_actions import BeginDrain
from fleet_operator.core.work import WorkKind
from fleet_operator.core.worker_view import Standing
from fleet_worker.protocol import Phase
from rlfleet_resources.weights_status import RolloutPhase

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.checkpoint import Checkpoint
    from fleet_operator.core.decision import Decision
    from fleet_operator.core.worker_view import WorkerView
    from fleet_worker.protocol import WorkerState


_AWAY: tuple[WorkKind, ...] = ("apply", "pause", "load", "fence")
_SWAPS_IN = frozenset({RolloutPhase.STAGING, RolloutPhase.LOADING})


def check_order(simulation: Simulation, leader: Leader, decision: Decision) -> None:
    """No worker that could swap now has fewer sessions than one that is called to."""
    called = {c.pod_uid: c for c in decision.worker_calls if isinstance(c, Apply)}
    if not called or leader.observed is None:
        return
    # One that ignored its call gets it again, while the problem keeps others from new swaps.
    called = {w.pod.uid: called[w.pod.uid] for w in leader.observed.workers if _is_first(w, called)}
    if not called:
        return
    call = next(iter(called.values()))
    could = [w for w in leader.observed.workers if _could_swap(w, call)]
    most = max(
        (_sessions(w.state), w.pod.name) for w in leader.observed.workers if w.pod.uid in called
    )
    for worker in could:
        if worker.pod.uid not in called and _sessions(worker.state) < most[0]:
            simulation.fail(
                15,
                f"{most[1]} with {most[0]} sessions swaps before {worker.pod.name} with "
                f"{_sessions(worker.state)}",
            )


def _is_first(worker: WorkerView, called: Mapping[str, Apply]) -> bool:
    return worker.pod.uid in called and not worker.facts.refuses


def check_swaps(simulation: Simulation, leader: Leader, decision: Decision) -> None:
    """Where a number of workers may be away, the next one swaps unless as many are. A pod behind a gate is not away.
    And no swap begins together with a drain: each relies on the workers that serve.
    """
    observed, plan = leader.observed, decision.rollout
    if observed is None or observed.is_external or leader is not simulation.leader:
        return
    swaps = [c for c in decision.worker_calls if isinstance(c, Apply)]
    drained = [a.pod_name for a in decision.pod_actions if isinstance(a, BeginDrain)]
    if swaps and drained:
        simulation.fail(4, f"{swaps[0].pod_name} swaps, and {drained} begin to drain")
    rollout, stored = simulation.promises.rollout, simulation.fleet_stored.transition
    is_rolling = rollout.strategy == "Rolling" and (stored is None or stored.strategy == "Rolling")
    waits = plan.waits_for_pin or plan.step.waiting or plan.step.problem or plan.suspended
    if not is_rolling or leader.desired is not simulation.desired or waits or plan.halted:
        return
    if swaps or drained or plan.step.phase not in _SWAPS_IN:
        return
    goal, live = plan.step.goal, [w for w in observed.workers if not w.pod.deleting]
    open_now = [w for w in live if w.standing is Standing.OPEN and w.pod.drains_since is None]
    opened = [w for w in live if w.standing is Standing.OPEN]
    moving = [w for w in opened if w.is_called_to("apply") or any(map(w.is_doing, _AWAY))]
    unknown = [w for w in open_now if not isinstance(w.facts.phase, Phase)]
    could = [w for w in open_now if not w.has_loaded(goal) and not w.busy and _has_staged(w, goal)]
    gated = sum(w.facts.pod.gated for w in live)
    replicas = observed.spec.replicas
    expected = max(replicas - gated, min(replicas, len(live) - gated))
    away = expected - (min(len(open_now), expected) - len(moving) - len(unknown))
    called = {c.pod_uid for c in decision.worker_calls}
    able = [w for w in could if w.pod.uid not in called and not w.facts.refuses]
    if able and away < at_most(rollout.max_unavailable, expected):
        simulation.fail(6, f"{able[0].pod.name} may swap to {goal.label} now, and gets no call")


def _has_staged(worker: WorkerView, goal: Checkpoint) -> bool:
    state = worker.state
    return state is not None and worker.has_staged(goal)


def _could_swap(worker: WorkerView, call: Apply) -> bool:
    """Whether nothing but the number of workers that are away can keep it from a swap."""
    state = worker.state
    if state is None or worker.standing is not Standing.OPEN or worker.busy:
        return False
    if worker.pod.drains_since is not None:  # it leaves, and is fenced instead
        return False
    if worker.facts.refuses:  # also if it has ignored a call to take weights
        return False
    return worker.has_staged(call) and not worker.has_loaded(call)


def _sessions(state: WorkerState | None) -> int:
    assert state is not None
    return max(state.sessions, state.requests_running + state.requests_held)
