"""Promise 14: no more than `rollout.maxStaging` workers read one checkpoint at once.

Checked whenever the leader sends a call that makes a worker read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet_operator.core.actions import ReadLora, Stage
from fleet_operator.core.identity import WeightsId
from fleet_operator.core.percentages import at_most

if TYPE_CHECKING:
    from tests.model.desired import Desired
    from tests.model.leader import Flight, Leader
    from tests.model.simulator import Simulation

    from fleet_operator.api.fleet import Rollout
    from fleet_operator.core.actions import WorkerCall
    from fleet_operator.core.work import Work
    from fleet_operator.core.worker_view import WorkerView

PROBE_SECONDS = 10.0
"""A worker may be silent for this long before the kubelet has noticed it."""


class Readers:
    """Fields:

    asked: uid of a worker → the leader's last call to it that makes it read.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.sim = simulation
        self.asked: dict[str, Flight] = {}

    def note_flight(self, leader: Leader, flight: Flight) -> None:
        """A call has left an operator. Later ones of other kinds do not end the reading."""
        if leader is self.sim.leader and isinstance(flight.action, Stage | ReadLora):
            self.asked[flight.action.pod_uid] = flight

    def note_sent(self, leader: Leader, call: WorkerCall) -> None:
        """A call is about to leave an operator. With it, one more worker may read a checkpoint."""
        observed, desired = leader.observed, leader.desired
        reads = isinstance(call, Stage | ReadLora)
        if leader is not self.sim.leader or not reads or observed is None or desired is None:
            return
        bound = _rollout_for(desired, call).max_staging
        if bound is None:
            return
        most = at_most(bound, observed.spec.replicas)
        reading = [w.pod for w in observed.workers if self._reads(leader, w, call)]
        again = call.work in leader.lost.get(call.pod_uid, {}).values()
        if again or any(pod.uid == call.pod_uid for pod in reading):
            return  # a repeated call: the bound may have become lower since the first one
        others = [pod.name for pod in reading]
        if len(others) >= most:
            which = f"{call.pod_name} gets {call.work} while {', '.join(others)} still read"
            self.sim.fail(14, f"{which}; at most {most} may at once")

    def _reads(self, leader: Leader, worker: WorkerView, call: Stage | ReadLora) -> bool:
        uid, seen = worker.pod.uid, worker.pod
        gone = seen.deleting or seen.quarantine or not seen.running
        if gone or worker.silent_seconds >= PROBE_SECONDS:
            return False
        flight, asked, pod = leader.flights.get(uid), self.asked.get(uid), self.sim.pods.get(uid)
        if flight is not None and _is_read(flight.action.work, call):
            return True
        ticket = pod.worker.staging if pod is not None else None
        is_at_it = ticket is not None and ticket.work[1:] == ("", call.version, call.run_id)
        is_at_it &= isinstance(call, Stage)
        over = ticket is not None and self.sim.now - ticket.began_at >= call.timeout_seconds
        # A call without an answer counts for its time, until the worker has answered.
        if any(_is_read(work, call) for work in leader.lost.get(uid, {}).values()):
            read_seconds = worker.seconds_at("stage", WeightsId(call.version, call.run_id)) or 0.0
            had_it = (is_at_it and over) or read_seconds >= call.timeout_seconds
            return not had_it and worker.silent_seconds < call.timeout_seconds
        if over or not is_at_it:
            return False
        heard = leader.heard.get(uid)
        if heard is not None and (asked is None or heard.at > asked.sent_at):
            work = heard.state.operation
            return work is not None and (work.kind, work.version) == ("stage", call.version)
        return asked is not None and asked.ticket is ticket


def _is_read(work: Work, call: Stage | ReadLora) -> bool:
    """Whether some work reads the checkpoint of a call. A comparison reads what a stage would."""
    kinds = {work.kind.replace("compare", "stage"), call.kind.replace("compare", "stage")}
    return len(kinds) == 1 and work[1:] == call.work[1:]


def _rollout_for(desired: Desired, call: WorkerCall) -> Rollout:
    """The settings in force for a call: those of the base weights, or those of an adapter."""
    fleet = desired.fleet_spec.rollout
    if not isinstance(call, ReadLora):
        return desired.base_spec.rollout.over(fleet) if desired.base_spec else fleet
    specs = (asked.view(uid).spec for uid, asked in desired.weights)
    own = next(s.rollout for s in specs if s.adapter == call.adapter)
    return own.over(fleet)
