"""Runs the real planners against a fake fleet, with faults, and checks the promises all the time.

The simulation plays everything around `decide`: trainers and people, the API server and its late
watches, the kubelet and nodes, workers, the wire between, and operator processes that may die or
freeze between any two actions. After every single action the promises are checked (`promises`).
Everything random comes from one seed, which every failure prints.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model.endings import TICK_SECONDS, Endings
from tests.model.fake_pods import FakePod, at, pod_environment, told
from tests.model.fake_state import Files
from tests.model.fake_worker import FakeWorker
from tests.model.faults import Faults
from tests.model.leader import KEY, Doing, Flight, Leader, WriteApplied, WriteFleet, WriteWeights
from tests.model.mishaps import Mishaps
from tests.model.promises import PromiseBroken, Promises
from tests.model.trainers import Trainers
from tests.model.wanted import BASE_UID, NO_STATUS, Wanted, base_weights, fleet_of
from tests.model.wire import Wire

from fleet_operator.api import names
from fleet_operator.api.conditions import Condition, ConditionType, condition_of
from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import WeightsStatus
from fleet_operator.core.actions import (
    Admit,
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
)
from fleet_operator.core.decision import Decision
from fleet_operator.core.observed import PodView, Target
from fleet_operator.core.transitions import fleet_transitions, weights_transitions
from fleet_worker.drain_names import drain_seconds_of

KEPT_VIEWS = 60
NODES = ("node-0", "node-1")
SLEEPERS_LOOKS = 6
"""So often a suspended leader looks around after it woke up, at most: its Lease is read every 2 s."""


@dataclass(frozen=True)
class Entry:
    """One line of the log: who did what, and why."""

    at: float
    who: str
    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.who:<9} {self.what}" + (
            f"  ({self.why})" if self.why else ""
        )


class Simulation(Trainers, Mishaps, Endings):
    """One fleet named `policy`, with a WeightVersion that asks for version 1."""

    def __init__(
        self,
        *,
        seed: int,
        replicas: int = 3,
        rollout: dict[str, Any] | None = None,
        slow_seconds: float = 0,
        management: str = "Operator",
        **spec: Any,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)  # noqa: S311 - repeatable on purpose
        self.shuffles = True
        self.slow_seconds = slow_seconds
        self.faults = Faults()
        self.between: Callable[[], None] | None = None
        self.now = 0.0
        self.steps = 0
        self.serial = 0
        self.writes = 0
        self.objects = 1
        self.log: list[Entry] = []
        self.pods: dict[str, FakePod] = {}
        self.nodes: dict[str, float | None] = dict.fromkeys(NODES)
        self.bad_versions: set[str] = set()
        self.odd_versions: set[str] = set()
        self.fleet_stored = FleetStatus()
        self.fleet_version = 0  # stands for its resourceVersion: how often it was written
        self.weights_stored: dict[str, WeightsStatus] = {}
        self.applied_written: Target | None = None
        self.files = Files()
        self.lag_seconds = 0.0
        self.lease_term = 0
        self.lease_deleted = False
        self.clock_ahead_seconds = 0.0
        self.wanted = Wanted(fleet_of(replicas, management, rollout or {}, **spec))
        if management == "Operator":
            self.wanted = self.wanted.with_weights(BASE_UID, base_weights("1"))
        self.wanted_before: deque[tuple[float, Wanted]] = deque([(0.0, self.wanted)], KEPT_VIEWS)
        self.pods_before: deque[tuple[float, tuple[PodView, ...]]] = deque([(0.0, ())], KEPT_VIEWS)
        self.wire = Wire(self)
        self.ghosts: list[Leader] = []
        self.leader = Leader(0, self.fleet_stored, {})
        self.promises = Promises(self)
        self.start_operator()

    # --- what can be seen -------------------------------------------------------------------------

    @property
    def workers(self) -> dict[str, FakeWorker]:
        return {uid: pod.worker for uid, pod in self.pods.items()}

    @property
    def version(self) -> str:
        return self.wanted.version

    @property
    def replicas(self) -> int:
        return self.wanted.fleet_spec.replicas

    @property
    def fleet(self) -> FleetStatus:
        """The fleet's status, as the leader has computed it last."""
        return self.leader.fleet

    @property
    def weights(self) -> WeightsStatus:
        """The status of the base weights' WeightVersion, likewise."""
        return self.leader.weights.get(self.wanted.base_uid, NO_STATUS)

    @property
    def is_rough(self) -> bool:
        """Whether the wire or the caches may be at fault."""
        f = self.faults
        return any((f.answer_lost, f.call_lost, f.answer_late, f.stale_view, self.lag_seconds))

    def pod(self, ordinal: int) -> FakePod:
        """The worker of an ordinal."""
        return next(p for p in self.pods.values() if p.ordinal == ordinal)

    @property
    def serving(self) -> list[str]:
        """What clients get tokens of, by ordinal."""
        in_order = sorted(self.pods.values(), key=lambda p: p.ordinal)
        return [str(p.worker.weights) for p in in_order if self.serves(p)]

    @property
    def stalled(self) -> Condition | None:
        """Why a person is needed, by the WeightVersion's account or else by the fleet's."""
        for status in (self.weights, self.fleet):
            if found := condition_of(status.conditions, ConditionType.STALLED):
                return found
        return None

    def node_up(self, pod: FakePod) -> bool:
        return self.nodes[pod.node] is None

    def serves(self, pod: FakePod) -> bool:
        """Whether clients get tokens from it through the Service."""
        return pod.worker.generates and pod.in_service(node_up=self.node_up(pod))

    # --- what else people do -----------------------------------------------------------------------

    def delete(self, pod: FakePod) -> None:
        """A person deletes a pod."""
        self.note("person", f"deletes {pod.name}")
        self.promises.note_cluster_drain(pod)
        self._delete(pod)

    # --- operators --------------------------------------------------------------------------------

    def start_operator(self) -> None:
        """A new leader: nothing in memory, a new term, and the wall clock of its host."""
        written = {"fleet": self.fleet_stored, **self.weights_stored}
        self.lease_term += 1
        self.leader = Leader(
            self.lease_term,
            self.fleet_stored,
            dict(self.weights_stored),
            written=written,
            seen_until=self.now,  # it has listed everything
            clock_ahead_seconds=self.clock_ahead_seconds,
            fleet_version=self.fleet_version,
        )
        self.pods_before.append((self.now, self._pod_views()))
        self.note("operator", f"starts, term {self.leader.term}")
        self.promises.note_leader()

    def freeze_operator(self) -> None:
        """The leader stops in the middle, with what it was about to do in its hand."""
        self.note("operator", f"of term {self.leader.term} freezes")
        self.ghosts.append(self.leader)
        self.start_operator()

    def suspend_operator(self, seconds: float) -> None:
        """The virtual machine of the leader is paused: its monotonic clock stands still, and another
        process leads. It wakes up when it is haunted, with its caches of before.
        """
        self.note("operator", f"of term {self.leader.term} is suspended for {seconds:.0f} s")
        sleeper = self.leader
        sleeper.looks_left = SLEEPERS_LOOKS if sleeper.wanted else 0  # else it never looked
        self.ghosts.append(sleeper)
        self.tick(seconds)
        sleeper.slept_seconds += seconds
        self.start_operator()

    def be_away(self, seconds: float, *, clock_ahead_seconds: float = 0.0) -> None:
        """No operator leads, or the API server is out of reach, which ends every leader; the next
        one runs on a host whose wall clock is wrong by so much.
        """
        self.note("fault", f"no operator for {seconds:.0f} s")
        self.tick(seconds)
        self.clock_ahead_seconds = clock_ahead_seconds
        self.start_operator()

    def set_clock(self, ahead_seconds: float) -> None:
        """The wall clock of the leader's host is set."""
        self.note("fault", f"the operator's clock is {ahead_seconds:+.0f} s off")
        self.clock_ahead_seconds = self.leader.clock_ahead_seconds = ahead_seconds

    def delete_lease(self) -> None:
        """A person deletes the Lease while no process runs; the next one counts terms from 1 again."""
        self.note("person", "deletes the Lease")
        self.ghosts.clear()
        self.lease_term = 0
        self.lease_deleted = True
        self.start_operator()

    def read_lease(self, leader: Leader) -> None:
        """A leader whose call was refused as old reads the Lease; if it is not its own, it ends."""
        if not leader.epochs.refused():
            return
        ours = leader is self.leader
        leader.read_lease(ours=ours)
        if not ours:
            self.note("ghost", f"of term {leader.term} has lost the Lease and ends")
            leader.todo.clear()
            leader.looks_left = 0

    def haunt(self, ghost: Leader) -> None:
        """A leader that was frozen or suspended goes on where it was, unaware of its successor.

        A worker that has not heard of the successor yet would let itself be opened. There the epoch
        does not help, but that the process asks itself before every call whether it leads
        (`runtime.fenced`). One that was suspended also looks around again, and decides.
        """
        self.read_lease(ghost)
        if not ghost.todo and ghost.looks_left:
            ghost.looks_left -= 1
            self.wire.ask(ghost)
            decision = ghost.decide(self.now)
            calls = [c for c in decision.worker_calls if self._is_aware(c.pod_uid, ghost)]
            ghost.todo = deque(calls)
            self.note("ghost", f"of term {ghost.term} looks around")
        action = ghost.todo.popleft() if ghost.todo else None
        if isinstance(action, Admit) and not self._is_aware(action.pod_uid, ghost):
            action = None
        if action is not None:
            self.do(action, ghost)
        if not ghost.todo and not ghost.looks_left:
            self.ghosts.remove(ghost)
        self.check()

    def _is_aware(self, uid: str, ghost: Leader) -> bool:
        """Whether a worker has heard of a newer leader."""
        worker = self.workers.get(uid)
        return worker is not None and worker.epoch is not None and worker.epoch.term > ghost.term

    def reconcile(self) -> bool:
        """Observe, decide, act, write. Returns: whether anything was done or written."""
        before = self.writes, len(self.wire.sent)
        leader, decision = self.leader, self.decide()
        while leader.todo:
            if self._interrupted(leader):
                return True
            self.act()
            if self.faults.operator_dies_after is not None:
                self.faults.operator_dies_after -= 1
        return before != (self.writes, len(self.wire.sent)) or bool(decision.pod_actions)

    def decide(self) -> Decision:
        """The leader looks around and decides what to do; nothing is done yet."""
        self.steps += 1
        self.tick(0.001)  # nothing takes no time at all
        leader = self.leader
        self._watch(leader)
        self.read_lease(leader)
        self.wire.ask(leader)
        self.promises.note_look(leader)
        before = leader.fleet, dict(leader.weights)
        decision = leader.decide(self.now)
        self.promises.note_decision(leader, decision)
        self.promises.note_status(before[1])
        self._tell(*before)
        actions: list[Doing] = [*decision.worker_calls, *decision.pod_actions]
        actions += self._writes(leader)
        if self.shuffles:
            self.random.shuffle(actions)
        leader.todo = deque(actions)
        return decision

    def _tell(self, fleet: FleetStatus, weights: dict[str, WeightsStatus]) -> None:
        """What statuses say anew: phases, and what becomes an Event."""
        events = fleet_transitions(fleet, self.leader.fleet)
        for uid, status in self.leader.weights.items():
            known = weights.get(uid, NO_STATUS)
            events += weights_transitions(known, status)
            if (known.phase, known.desired_version) != (status.phase, status.desired_version):
                self.note("status", f"{uid}: version {status.desired_version} is {status.phase}")
        for event in events:
            self.note("event", f"{event.type} {event.reason}: {event.message}")

    def act(self) -> None:
        """The leader does the next thing that it has decided."""
        self.do(self.leader.todo.popleft(), self.leader)
        self.check()

    def _interrupted(self, leader: Leader) -> bool:
        if self.between is not None:
            self.between()
        if self.faults.operator_dies_after == 0 or self.happens(self.faults.operator_dies):
            self.faults.operator_dies_after = None
            self.note("operator", "dies between two actions")
            self.start_operator()
        elif self.happens(self.faults.operator_freezes):
            self.freeze_operator()
        return self.leader is not leader

    def _watch(self, leader: Leader) -> None:
        """The watches bring what was a while ago; they never go back in time."""
        then = leader.seen_until = max(leader.seen_until, self.now - self.lag_seconds)
        leader.wanted = next(w for t, w in reversed(self.wanted_before) if t <= then or t == 0)
        if then < self.now:
            found = (p for t, p in reversed(self.pods_before) if t <= then)
            leader.look_at_pods(next(found, self.pods_before[0][1]))
        else:
            self.pods_before.append((self.now, self._pod_views()))
            leader.look_at_pods(self.pods_before[-1][1])

    def _pod_views(self) -> tuple[PodView, ...]:
        in_order = sorted(self.pods.values(), key=lambda p: p.ordinal)
        return tuple(p.view(self.now) for p in in_order)

    def _writes(self, leader: Leader) -> list[Doing]:
        found: list[Doing] = []
        assert leader.decision is not None
        if leader.fleet is not (stored := leader.written.get("fleet")) and leader.fleet != stored:
            found.append(WriteFleet(leader.fleet))
        for uid, status in leader.decision.weights.items():
            if status is not (stored := leader.written.get(uid)) and status != stored:
                found.append(WriteWeights(uid, status))
        applied = leader.decision.rollout.applied
        if self.applied_written != applied:
            found.append(WriteApplied(applied))
        return found

    # --- what actions do --------------------------------------------------------------------------

    def do(self, action: Doing, leader: Leader) -> None:
        """Carry an action out, if nothing is in its way."""
        match action:
            case WriteFleet() | WriteWeights() | WriteApplied():
                if not self.happens(self.faults.status_unwritten):
                    self._write(action, leader)
            case CreatePod() | DeletePod() | BeginDrain() | EndDrain() | Quarantine() | AdoptPod():
                who = "operator" if leader is self.leader else "ghost"
                self.note(who, f"{type(action).__name__} {action.name}", action.reason)
                if not self.happens(self.faults.api_refuses):
                    self._change_pod(action, leader)
            case _:
                self.wire.send(leader, action)

    def _write(self, action: WriteFleet | WriteWeights | WriteApplied, leader: Leader) -> None:
        self.writes += 1
        match action:
            case WriteFleet():
                if leader.may_write_over(self.fleet_version):
                    self.fleet_stored = leader.written["fleet"] = action.status
                    self.fleet_version = leader.note_written(self.fleet_version)
            case WriteWeights():
                leader.written[action.uid] = action.status
                if action.uid in dict(self.wanted.weights):
                    self.weights_stored[action.uid] = action.status
            case WriteApplied():
                self.applied_written = action.applied
                for worker in self.workers.values():
                    self._tell_start(worker)

    def _tell_start(self, worker: FakeWorker) -> None:
        """The ConfigMap tells a worker what to start on."""
        applied = self.applied_written
        assert applied is not None
        worker.start_version, worker.start_source = applied.version, str(applied.source)
        worker.start_run_id, worker.start_digest = applied.run_id, applied.digest

    def _change_pod(self, action: PodAction, leader: Leader) -> None:
        if isinstance(action, CreatePod):
            self._create(action)
            return
        pod = self.pods.get(action.uid)
        if pod is None:
            return
        match action:
            case DeletePod():
                self.promises.note_leaving(pod, leader)
                self._delete(pod)
            case BeginDrain():
                self.promises.note_leaving(pod, leader)
                pod.drains_since = action.since
            case EndDrain():
                self.promises.note_staying(pod)
                pod.drains_since = None
            case Quarantine():
                pod.quarantine = pod.quarantine or action.reason
            case AdoptPod():
                pod.owner = action.owner["uid"]
        leader.own_writes.note(KEY, action)

    def _delete(self, pod: FakePod) -> None:
        pod.delete(self.now)
        if self.node_up(pod):
            pod.run_hook(self.now)

    def _create(self, action: CreatePod) -> None:
        labels = action.manifest["metadata"]["labels"]
        ordinal = int(labels[names.LABEL_ORDINAL])
        up = [n for n, lost_at in self.nodes.items() if lost_at is None]
        if not up or any(p.ordinal == ordinal for p in self.pods.values()):
            return
        self.serial += 1
        worker = FakeWorker(f"uid-{self.serial}", ordinal, labels[names.LABEL_REVISION], self.now)
        if self.applied_written is not None:
            self._tell_start(worker)
        worker.files = self.files
        worker.start()
        worker.bad_sources = {f"/weights/step_{v}" for v in self.bad_versions}
        worker.slow_seconds = self.slow_seconds
        worker.odd_versions = self.odd_versions
        pod = FakePod(worker, up[ordinal % len(up)])
        pod.drain_seconds = drain_seconds_of(pod_environment(action.manifest))
        self.pods[worker.uid] = pod
        self.queue(pod)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Time passes; what happens meanwhile happens in order."""
        end = self.now + seconds
        while True:
            self.now = min((t for t in self._next_times() if t > self.now), default=end)
            self.now = min(self.now, end)
            for pod in list(self.pods.values()):
                pod.worker.tick(self.now)
                pod.tick(self.now, node_lost_at=self.nodes[pod.node])
                if pod.is_gone(self.now, node_up=self.node_up(pod)):
                    del self.pods[pod.uid]
            self.wire.tick()
            if self.lag_seconds or seconds >= TICK_SECONDS:
                self.pods_before.append((self.now, self._pod_views()))
            self.check()
            if self.now >= end:
                return

    def _next_times(self) -> list[float]:
        times = self.wire.next_times()
        for pod in self.pods.values():
            times += [t for t in (pod.worker.next_at(), pod.next_at(self.nodes[pod.node])) if t]
        return times

    def check(self) -> None:
        """Every promise, now."""
        self.promises.check()

    # --- telling ----------------------------------------------------------------------------------

    def happens(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    def note(self, who: str, what: str, why: str = "") -> None:
        self.log.append(Entry(self.now, who, what, why))

    def story(self) -> str:
        lines = [*map(str, self.log[-60:]), *(f"    {told(p)}" for p in self.pods.values())]
        return f"seed {self.seed}\n" + "\n".join(lines)

    def fail(self, number: int, text: str) -> None:
        raise PromiseBroken(number, f"{text}\n{self.story()}")


__all__ = ["Faults", "Flight", "PromiseBroken", "Simulation", "at"]
