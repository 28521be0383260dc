"""Runs the real planners against a fake fleet with faults, and checks the promises after every action.

The simulation plays everything around `decide`: trainers and users, the API server and its late
watches, the kubelet and nodes, workers and the network. Operator processes may die or freeze between
any two actions.
Everything random comes from one seed, which every failure prints.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.model.convergence import TICK_SECONDS, Convergence
from tests.model.desired import BASE_UID, NO_STATUS, Desired, base_weights, fleet_of
from tests.model.fake_pods import FakePod, at, described, has_adapter_slots, pod_environment
from tests.model.fake_revisions import FakeRevisions
from tests.model.fake_state import Files
from tests.model.fake_worker import FakeWorker
from tests.model.fault_injection import FaultInjection
from tests.model.faults import Faults
from tests.model.leader import (
    Doing,
    Flight,
    Leader,
    WriteApplied,
    WriteFleet,
    WriteWeights,
)
from tests.model.operators import Operators
from tests.model.promises import PromiseBroken, Promises
from tests.model.trainers import Trainers
from tests.model.wire import Wire

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.decision import Decision
from fleet_operator.core.events import fleet_events, weights_events
from fleet_operator.core.pod_actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
)
from fleet_operator.core.worker_view import PodView
from fleet_worker.drain_names import drain_seconds_of
from rlfleet_resources import names
from rlfleet_resources.conditions import Condition, condition_of
from rlfleet_resources.fleet_status import FleetStatus
from rlfleet_resources.reasons import ConditionType
from rlfleet_resources.weights_status import WeightsStatus

KEPT_VIEWS = 60
NODES = ("node-0", "node-1")


@dataclass(frozen=True)
class Entry:
    """One line of the log: the actor, the action and its reason."""

    at: float
    who: str
    what: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.at:9.3f}  {self.who:<9} {self.what}" + (
            f"  ({self.why})" if self.why else ""
        )


class Simulation(Trainers, FaultInjection, Operators, Convergence):
    """One fleet named `policy`, with a WeightVersion that asks for version 1."""

    def __init__(
        self,
        *,
        seed: int,
        replicas: int = 3,
        rollout: dict[str, Any] | None = None,
        slow_seconds: float = 0,
        management: str = "Operator",
        pins: int | None = None,
        **spec: Any,
    ) -> None:
        self.seed = seed
        self.pins = pins
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
        self.fleet_version = 0  # the resourceVersion: the number of writes
        self.weights_stored: dict[str, WeightsStatus] = {}
        self.applied_written: Checkpoint | None = None
        self.files = Files()
        self.lag_seconds = 0.0
        self.lease_term = 0
        self.lease_deleted = False
        self.clock_ahead_seconds, self.clock_set_at = 0.0, 0.0
        self.desired = Desired(fleet_of(replicas, management, rollout or {}, **spec))
        if management == "Operator":
            self.desired = self.desired.with_weights(BASE_UID, base_weights("1"))
        self.desired_before: deque[tuple[float, Desired]] = deque([(0.0, self.desired)], KEPT_VIEWS)
        self.pods_before: deque[tuple[float, tuple[PodView, ...]]] = deque([(0.0, ())], KEPT_VIEWS)
        self.stored_before: deque[tuple[float, int, FleetStatus]] = deque(maxlen=KEPT_VIEWS)
        self.wire = Wire(self)
        self.revisions = FakeRevisions(self)
        self.former_leaders: list[Leader] = []
        self.absences: list[tuple[float, float]] = []
        self.leader = Leader(0, self.fleet_stored, {})
        self.promises = Promises(self)
        self.start_operator()

    # --- what can be seen -------------------------------------------------------------------------

    @property
    def workers(self) -> dict[str, FakeWorker]:
        return {uid: pod.worker for uid, pod in self.pods.items()}

    @property
    def version(self) -> str:
        return self.desired.version

    @property
    def replicas(self) -> int:
        return self.desired.fleet_spec.replicas

    @property
    def fleet(self) -> FleetStatus:
        """The fleet's status, as the leader has computed it last."""
        return self.leader.fleet

    @property
    def weights(self) -> WeightsStatus:
        """The status of the base weights' WeightVersion, likewise."""
        return self.leader.weights.get(self.desired.base_uid, NO_STATUS)

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
        """The weights behind the tokens that clients get, by ordinal."""
        in_order = sorted(self.pods.values(), key=lambda p: p.ordinal)
        return [str(p.worker.weights) for p in in_order if self.serves(p)]

    @property
    def stalled(self) -> Condition | None:
        """The reason of Stalled, of the WeightVersion or else of the fleet."""
        for status in (self.weights, self.fleet):
            if found := condition_of(status.conditions, ConditionType.STALLED):
                return found
        return None

    def node_up(self, pod: FakePod) -> bool:
        return self.lost_at(pod) is None

    def lost_at(self, pod: FakePod) -> float | None:
        """Since when its node is lost. A pod behind a scheduling gate has none."""
        return None if pod.gated else self.nodes[pod.node]

    def serves(self, pod: FakePod) -> bool:
        """Whether clients get tokens from it through the Service."""
        return pod.worker.generates and pod.in_service(node_up=self.node_up(pod))

    # --- other actions of users ---------------------------------------------------------------------

    def delete(self, pod: FakePod) -> None:
        """A user deletes a pod."""
        self.note("user", f"deletes {pod.name}")
        self.promises.availability.note_cluster_drain(pod)
        self._delete(pod)

    # --- operators --------------------------------------------------------------------------------

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
        """Changes of the statuses: phases, and conditions that become an Event."""
        events = fleet_events(fleet, self.leader.fleet)
        for uid, status in self.leader.weights.items():
            known = weights.get(uid, NO_STATUS)
            events += weights_events(known, status)
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
        leader.desired = next(w for t, w in reversed(self.desired_before) if t <= then or t == 0)
        for written_at, fleet_version, stored in reversed(self.stored_before):
            if written_at <= then:
                leader.note_stored(fleet_version, stored)
                break
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
            found.append(WriteFleet())
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
                who = "operator" if leader is self.leader else "former"
                self.note(who, f"{type(action).__name__} {action.pod_name}", action.reason)
                if not self.happens(self.faults.api_refuses):
                    self._change_pod(action, leader)
            case _:
                self.wire.send(leader, action)

    def _write(self, action: WriteFleet | WriteWeights | WriteApplied, leader: Leader) -> None:
        self.writes += 1
        match action:
            case WriteFleet():
                if leader.may_write_over(self.fleet_version):
                    self.promises.stored_first.note_write(leader)
                    self.fleet_stored = leader.written["fleet"] = leader.fleet
                    self.fleet_version = leader.note_written(self.fleet_version)
                    self.stored_before.append((self.now, self.fleet_version, self.fleet_stored))
                else:
                    leader.note_stored(self.fleet_version, self.fleet_stored)  # it reads again
            case WriteWeights():
                leader.written[action.uid] = action.status
                if action.uid in dict(self.desired.weights):
                    self.weights_stored[action.uid] = action.status
            case WriteApplied():
                self.applied_written = action.applied
                for worker in self.workers.values():
                    self._tell_start(worker)

    def _tell_start(self, worker: FakeWorker) -> None:
        """The ConfigMap tells a worker what to start on."""
        applied = self.applied_written
        assert applied is not None
        source = "" if applied.is_transferred else str(applied.source)
        worker.start_version, worker.start_source = applied.version, source
        worker.start_run_id, worker.start_digest = applied.run_id, applied.digest

    def _change_pod(self, action: PodAction, leader: Leader) -> None:
        if isinstance(action, CreatePod):
            self._create(action, leader)
            return
        pod = self.pods.get(action.pod_uid)
        if pod is None:
            return
        match action:
            case DeletePod():
                self.promises.availability.note_leaving(pod, leader)
                self._delete(pod)
            case BeginDrain():
                self.promises.availability.note_leaving(pod, leader)
                pod.drains_since = action.since
            case EndDrain():
                self.promises.availability.note_staying(pod)
                pod.drains_since = None
            case Quarantine():
                pod.quarantine = pod.quarantine or action.reason
            case AdoptPod():
                pod.owner = action.owner["uid"]
        leader.own_writes.note(action)

    def _delete(self, pod: FakePod) -> None:
        pod.delete(self.now)
        if self.node_up(pod):
            pod.run_hook(self.now)

    def _create(self, action: CreatePod, leader: Leader) -> None:
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
        worker.has_slots = has_adapter_slots(action.manifest)
        pod = FakePod(worker, up[ordinal % len(up)])
        pod.drain_seconds = drain_seconds_of(pod_environment(action.manifest))
        self.promises.availability.note_created(pod, leader)
        self.pods[worker.uid] = pod
        self.queue(pod)

    # --- time -------------------------------------------------------------------------------------

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Time passes, with its events in order."""
        end = self.now + seconds
        while True:
            self.now = min((t for t in self._next_times() if t > self.now), default=end)
            self.now = min(self.now, end)
            for pod in list(self.pods.values()):
                pod.worker.tick(self.now)
                pod.tick(self.now, node_lost_at=self.lost_at(pod))
                if pod.is_gone(self.now, node_up=self.node_up(pod)):
                    del self.pods[pod.uid]
                    self.let_in()
            self.wire.tick()
            if self.lag_seconds or seconds >= TICK_SECONDS:
                self.pods_before.append((self.now, self._pod_views()))
            self.check()
            if self.now >= end:
                return

    def _next_times(self) -> list[float]:
        times = self.wire.next_times()
        for pod in self.pods.values():
            times += [t for t in (pod.worker.next_at(), pod.next_at(self.lost_at(pod))) if t]
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
        lines = [*map(str, self.log[-60:]), *(f"    {described(p)}" for p in self.pods.values())]
        return f"seed {self.seed}\n" + "\n".join(lines)

    def fail(self, number: int, text: str) -> None:
        raise PromiseBroken(number, f"{text}\n{self.story()}")


__all__ = ["Faults", "Flight", "PromiseBroken", "Simulation", "at"]
