"""Promise 7, of refusals: a worker is not asked again at once for a version that it has refused.

Checked at each decision, by the refusals that the leader knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.desired import NO_STATUS

from fleet_operator.core.actions import Apply, Load, ReadLora, Stage
from fleet_worker.protocol import Reason

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.decision import Decision
    from fleet_worker.protocol import WorkerState

RETRY_SECONDS = 10.0
"""As documented."""
_PASSES = frozenset({Reason.NO_ADAPTER_SLOT, Reason.SOURCE_NOT_READY})
_PASSES_OF_BASE = frozenset({Reason.SOURCE_NOT_READY, Reason.SOURCE_ABSENT, Reason.PEER_UNREADABLE})


def check_retry_waits(simulation: Simulation, leader: Leader, decision: Decision) -> None:
    """No call asks for a version that its worker has refused a moment ago, in this attempt."""
    for call in decision.worker_calls:
        heard = leader.heard.get(call.pod_uid)
        if isinstance(call, Stage | Load | Apply) and heard is not None:
            _check_base(simulation, leader, call, heard.state, heard.at)
        if not isinstance(call, ReadLora) or heard is None or _only_drops(call, heard.state):
            continue
        for refusal in heard.state.adapter_failures:
            about = (refusal.name, refusal.version, refusal.run_id)
            age_seconds = refusal.age_seconds + simulation.now - heard.at
            is_same = about == (call.adapter, call.version, call.run_id)
            if is_same and refusal.reason not in _PASSES and age_seconds < RETRY_SECONDS:
                what = f"{call.pod_name} gets {call.work}, which it has refused"
                simulation.fail(7, f"{what} {age_seconds:.1f} s ago: {refusal.reason}")


def _check_base(
    simulation: Simulation,
    leader: Leader,
    call: Stage | Load | Apply,
    state: WorkerState,
    heard_at: float,
) -> None:
    """The same of base weights. Refusals before the attempt do not count, which a retry begins, for example."""
    assert leader.desired is not None
    begun = leader.weights.get(leader.desired.base_uid, NO_STATUS).started_at
    if begun is None:
        return
    lasts_seconds = simulation.surely_since(begun, leader)
    known = (state.load_failure, state.stage_failure, *state.earlier_stage_failures)
    for refusal in known:
        if refusal is None or refusal.retry_after_seconds is not None:
            continue
        age_seconds = refusal.age_seconds + simulation.now - heard_at
        is_same = (refusal.version, refusal.run_id) == (call.version, call.run_id)
        counts = is_same and refusal.reason not in _PASSES_OF_BASE
        if counts and age_seconds < min(RETRY_SECONDS, lasts_seconds):
            what = f"{call.pod_name} gets {call.work}, which it has refused"
            simulation.fail(7, f"{what} {age_seconds:.1f} s ago: {refusal.reason}")


def _only_drops(call: ReadLora, state: WorkerState) -> bool:
    """Whether a worker serves just what a call names. It then reads nothing, and drops what it holds."""
    wanted = (call.adapter, call.version, call.run_id, call.digest)
    served = {(a.name, a.version, a.run_id, a.digest) for a in state.adapters}
    return call.digest is not None and wanted in served
