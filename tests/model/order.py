"""Promise 15: a swap without a barrier goes by fewest sessions.

Checked at each decision, by the states that the leader knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_operator.core.actions import Apply
from fleet_operator.core.worker_view import Standing

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.decision import Decision
    from fleet_operator.core.worker_view import WorkerView
    from fleet_worker.protocol import WorkerState


def check_order(simulation: Simulation, leader: Leader, decision: Decision) -> None:
    """No worker that could swap now has fewer sessions than one that is called to."""
    called = {c.pod_uid: c for c in decision.worker_calls if isinstance(c, Apply)}
    if not called or leader.observed is None:
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


def _could_swap(worker: WorkerView, call: Apply) -> bool:
    """Whether nothing but the number of workers that are away can keep it from a swap."""
    state = worker.state
    if state is None or worker.standing is not Standing.OPEN or worker.busy:
        return False
    if worker.pod.drains_since is not None:  # it leaves, and is fenced instead
        return False
    if worker.facts.refuses:  # also if it has ignored a call to take weights
        return False
    return worker.has_staged(call)


def _sessions(state: WorkerState | None) -> int:
    assert state is not None
    return max(state.sessions, state.requests_running + state.requests_held)
