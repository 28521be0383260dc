"""Promise 7, of refusals: a worker is not asked again at once for a version that it has refused.

Checked at each decision, by the refusals that the leader knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_operator.core.actions import ReadLora
from fleet_worker.protocol import Reason

if TYPE_CHECKING:
    from tests.model.leader import Leader
    from tests.model.simulator import Simulation

    from fleet_operator.core.decision import Decision
    from fleet_worker.protocol import WorkerState

RETRY_SECONDS = 10.0
"""As documented."""
_PASSES = frozenset({Reason.NO_ADAPTER_SLOT, Reason.SOURCE_NOT_READY})


def check_retry_waits(simulation: Simulation, leader: Leader, decision: Decision) -> None:
    """No call asks for a version of an adapter that its worker has refused a moment ago."""
    for call in decision.worker_calls:
        heard = leader.heard.get(call.pod_uid)
        if not isinstance(call, ReadLora) or heard is None or _only_drops(call, heard.state):
            continue
        for refusal in heard.state.adapter_failures:
            about = (refusal.name, refusal.version, refusal.run_id)
            age_seconds = refusal.age_seconds + simulation.now - heard.at
            is_same = about == (call.adapter, call.version, call.run_id)
            if is_same and refusal.reason not in _PASSES and age_seconds < RETRY_SECONDS:
                what = f"{call.pod_name} gets {call.work}, which it has refused"
                simulation.fail(7, f"{what} {age_seconds:.1f} s ago: {refusal.reason}")


def _only_drops(call: ReadLora, state: WorkerState) -> bool:
    """Whether a worker serves just what a call names. It then reads nothing, and drops what it holds."""
    wanted = (call.adapter, call.version, call.run_id, call.digest)
    served = {(a.name, a.version, a.run_id, a.digest) for a in state.adapters}
    return call.digest is not None and wanted in served
