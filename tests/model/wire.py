"""Between operators and workers: questions and calls that get lost, come late, or are never answered.

A call may arrive long after it was sent, even after its sender has died or changed its goal. Its
answer shows the worker at the time of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.model.leader import Flight, Leader

from fleet_operator.core.actions import (
    Admit,
    Apply,
    Fence,
    Load,
    LoraCall,
    Resume,
    Stage,
    WorkerCall,
)
from fleet_operator.core.answers import problem_of_answer
from fleet_worker.admin.addressing import check_pod
from fleet_worker.errors import Refusal
from fleet_worker.protocol import ApplyRequest, Phase, Reason, Source

if TYPE_CHECKING:
    from tests.model.fake_pods import FakePod
    from tests.model.simulator import Simulation

SHORT_CALL_SECONDS = 10.0
LATEST_SECONDS = (8.0, 8.0, 40.0)
"""How late a call comes at most. Some come when their caller waits no longer."""
GRACE_AFTER_A_LIE = 20
"""Calls get lost and come late: so often the operator hears the truth until it has acted on it."""
REFUSALS_LAST_SECONDS = 60.0
"""As documented: a worker that refuses a call three times, and for this time, is not in a passing trouble."""
_UNHEARD = {Phase.STARTING, Phase.DRAINING}


class Wire:
    """Calls of all leaders, in flight or without a waiting caller.

    `sent`: every call that left an operator, as its key and the worker's name. `lost`: admissions that reached no
    worker. No operator can know that these are not late.
    """

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.late_calls: list[Flight] = []
        self.sent: list[tuple[str, str]] = []
        self.lost: list[Flight] = []

    def ask(self, leader: Leader) -> None:
        """The leader asks every worker that it sees for its state."""
        sim = self.simulation
        fenced = {uid for uid, f in leader.flights.items() if isinstance(f.action, Fence)}
        for seen in leader.pods:
            known = seen.uid in leader.heard
            if not seen.running or seen.deleting or (known and sim.happens(sim.faults.stale_view)):
                continue
            pod = self._at_address_of(seen.uid)
            if pod is None or not self._reaches(pod) or sim.happens(sim.faults.call_lost):
                leader.miss(seen.uid, sim.now)
                continue
            worker, state = pod.worker, pod.worker.state(sim.now)
            if pod.garbled or problem_of_answer(seen.uid, state, _refusal(pod, seen.uid)):
                leader.miss(seen.uid, sim.now)
                continue
            sim.promises.note_answer(seen, state)
            # One that pauses leaves its clients soon. One that refuses its fences is quarantined after a minute. A
            # fence that is on its way comes, or is sent again.
            refused_at = worker.refused_since.get("fence", float("-inf"))
            leaves = worker.phase is Phase.PAUSING or sim.now - refused_at < REFUSALS_LAST_SECONDS
            leaves = leaves or seen.uid in fenced
            if leader is sim.leader and not leaves:
                if worker.admitted:
                    pod.grace = max(0, pod.grace - 1)
                elif not worker.adapters:  # those are put right while it serves
                    pod.grace = 0
            leader.hear(seen.uid, state, worker.restarts, sim.now)

    def send(self, leader: Leader, call: WorkerCall) -> None:
        """A call leaves the operator."""
        sim, uid = self.simulation, call.pod_uid
        if not leader.wants_to_send(call, sim.now):
            return
        given_up = leader.flights.pop(uid, None)
        if given_up is not None:
            leader.lose(uid, given_up.action, given_up.epoch)
            self.late_calls += [given_up] if given_up.ticket is None else []
        sim.note("operator" if leader is sim.leader else "former", f"{call.work} on {call.pod_name}", call.reason)  # fmt: skip
        self.sent.append((str(call.work), call.pod_name))
        sim.promises.readers.note_sent(leader, call)
        sim.promises.repeated_calls.note_sent(leader, call)
        sim.promises.stored_first.note_sent(leader, call)
        sim.promises.deserved.note_sent(leader, call)
        call.to_request(leader.epoch)  # raises if the call does not fit into the protocol
        if sim.happens(sim.faults.call_lost):
            leader.note_call(uid, call, sim.now)
            leader.miss(uid, sim.now)
            leader.lose(uid, call, leader.epoch)
            self._lose(self._flight_of(call, leader))
            return
        late = sim.happens(sim.faults.answer_late)
        pod = sim.pods.get(uid)
        lost = sim.happens(sim.faults.answer_lost)
        patience = _patience_seconds(call) if lost and sim.happens(0.5) else 0.0
        if pod is not None and (pod.loses_answer or pod.garbled):
            lost, pod.loses_answer = True, False
        delay_seconds = self._delay_seconds() if late else 0.0
        if pod is not None and pod.delays[0] == call.kind:
            delay_seconds, pod.delays = pod.delays[1], ("", 0.0)
        flight = self._flight_of(call, leader, delay_seconds)
        flight.answer_seconds = None if lost else (sim.random.uniform(0, 2.0) if late else 0.0)
        flight.given_up_at = sim.now + (patience if lost else _patience_seconds(call))
        leader.begin_flight(uid, flight)
        sim.promises.readers.note_flight(leader, flight)
        self._move(leader, uid, flight)

    def _lose(self, flight: Flight) -> None:
        pod = self.simulation.pods.get(flight.action.pod_uid)
        listens = pod is not None and pod.worker.started_at <= self.simulation.now
        if isinstance(flight.action, Admit) and listens:  # else its connection is refused
            self.lost.append(flight)

    def _flight_of(self, call: WorkerCall, leader: Leader, delay_seconds: float = 0.0) -> Flight:
        now, pod = self.simulation.now, self.simulation.pods.get(call.pod_uid)
        return Flight(
            action=call,
            epoch=leader.epoch,
            sent_at=now,
            arrives_at=now + delay_seconds,
            answer_seconds=None,
            given_up_at=now,
            restarts=pod.worker.restarts if pod is not None else 0,
        )

    def _delay_seconds(self) -> float:
        chance = self.simulation.random
        return chance.uniform(0, chance.choice(LATEST_SECONDS))

    def tick(self) -> None:
        """Time has passed."""
        sim = self.simulation
        for leader in (sim.leader, *sim.former_leaders):
            for uid, flight in list(leader.flights.items()):
                self._move(leader, uid, flight)
        for late in [s for s in self.late_calls if s.arrives_at <= sim.now]:
            self.late_calls.remove(late)
            self._arrive(late)

    def leave(self, leader: Leader) -> None:
        """The process of a leader has ended. Its calls in the network arrive nevertheless."""
        self.late_calls += [f for f in leader.flights.values() if f.ticket is None]

    def mend(self) -> None:
        """A caller soon stops waiting for an answer that will not come."""
        sim = self.simulation
        for flight in sim.leader.flights.values():
            if flight.answer_seconds is None:
                flight.given_up_at = min(flight.given_up_at, sim.now + SHORT_CALL_SECONDS)

    def flights(self) -> list[Flight]:
        """All calls on their way, or without an answer."""
        leaders = (self.simulation.leader, *self.simulation.former_leaders)
        return [*self.late_calls, *(f for leader in leaders for f in leader.flights.values())]

    def openings(self) -> set[tuple[str, str | None]]:
        """Version and run of the weights at which calls that may yet arrive open workers."""
        calls = (f.action for f in self.flights() if f.ticket is None)
        return {(str(a.version), a.run_id) for a in calls if isinstance(a, Admit | Resume)}

    def swaps_under_way(self) -> bool:
        """Whether some worker swaps by itself, or will."""
        sim = self.simulation
        workers = [p.worker for p in sim.pods.values()]
        taken = [t.request for w in workers for t in (w.work, *w.waiting) if t is not None]
        sent = [f.action for f in self.flights()]
        todo = [a for former in sim.former_leaders for a in former.todo]
        return any(isinstance(a, Apply | ApplyRequest) for a in (*taken, *sent, *todo))

    def next_times(self) -> list[float]:
        """When something will happen on the wire."""
        times = [s.arrives_at for s in self.late_calls]
        sim = self.simulation
        for leader in (sim.leader, *sim.former_leaders):
            for flight in leader.flights.values():
                times += [flight.arrives_at, flight.given_up_at]
                times += [flight.back_at] if flight.back_at is not None else []
        return times

    def _move(self, leader: Leader, uid: str, flight: Flight) -> None:
        sim = self.simulation
        if flight.ticket is None and sim.now >= flight.arrives_at and not self._arrive(flight):
            leader.end_flight(uid, sim.now)
            return
        pod = sim.pods.get(uid)
        if flight.ticket is not None and pod is not None:
            if pod.worker.restarts != flight.restarts:
                leader.end_flight(uid, sim.now)  # the connection was reset
                return
            if flight.ticket.done and flight.state is None and flight.answer_seconds is not None:
                self._answer(leader, flight, pod)
        if flight.back_at is not None and sim.now >= flight.back_at:
            leader.end_flight(uid, sim.now)
        elif sim.now >= flight.given_up_at or pod is None:
            flight.state = None
            self.late_calls += [flight] if flight.ticket is None and pod is not None else []
            leader.end_flight(uid, sim.now)

    def _arrive(self, flight: Flight) -> bool:
        """Returns: whether a caller was there to take it."""
        sim = self.simulation
        uid = flight.action.pod_uid
        pod = self._at_address_of(uid)
        if pod is None or not self._reaches(pod) or _refusal(pod, uid) is not None:
            self._lose(flight)
            return False
        sim.promises.note_taken(pod, flight)
        if pod.worker.restarts != flight.restarts or flight.is_reset(pod.worker):
            return False
        sim.promises.availability.note_call(pod, flight)
        call = flight.action
        adapter = call.adapter if isinstance(call, LoraCall) else ""
        flight.ticket = pod.worker.take(call.to_request(flight.epoch), sim.now, adapter=adapter)
        return True

    def _answer(self, leader: Leader, flight: Flight, pod: FakePod) -> None:
        sim, worker = self.simulation, pod.worker
        assert flight.ticket is not None
        assert flight.answer_seconds is not None
        refused = flight.ticket.reason is Reason.STALE_EPOCH and leader is sim.leader
        if refused and not sim.lease_deleted:
            sim.fail(0, "the only leader was refused as old")
        flight.state = worker.state(sim.now)
        loads = isinstance(flight.action, Load) and not flight.ticket.reason
        if worker.claims and worker.lies_about("load") and loads and worker.staged_source:
            source = Source(path=worker.staged_source)
            named = {"version": flight.action.version, "run_id": flight.action.run_id}
            claimed = named | {"digest": flight.action.digest, "source": source, "staged": None}
            flight.state = flight.state.model_copy(update=claimed)
            pod.grace = GRACE_AFTER_A_LIE
        flight.back_at = sim.now + flight.answer_seconds

    def _at_address_of(self, uid: str) -> FakePod | None:
        """Which pod of the fleet has the address under which the operator knows this one, if any."""
        pods = self.simulation.pods
        pod = pods.get(uid)
        return pods.get(pod.address_of) if pod is not None and pod.address_of else pod

    def _reaches(self, pod: FakePod) -> bool:
        gone = pod.cut_off or pod.ended or pod.problem or not self.simulation.node_up(pod)
        return not gone and not pod.worker.hung and pod.worker.phase not in _UNHEARD


def _refusal(pod: FakePod, addressed: str) -> Reason | None:
    """The reason why a worker rejects a call for the pod `addressed` unread."""
    try:
        check_pod(addressed, pod.uid)
    except Refusal as refusal:
        return refusal.reason
    return None


def _patience_seconds(call: WorkerCall) -> float:
    """After how long the operator gives an answer up (`adapters.workers`)."""
    if isinstance(call, Apply):
        return call.drain_timeout_seconds + call.timeout_seconds
    if isinstance(call, Stage | Load):
        return call.timeout_seconds
    drain = getattr(call, "drain_timeout_seconds", 0.0)
    return float(getattr(call, "timeout_seconds", SHORT_CALL_SECONDS + drain))
