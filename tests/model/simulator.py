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
from dataclasses import dataclass, replace
from typing import Any

from tests.model.fake_pods import FakePod, at, told
from tests.model.fake_state import content_of
from tests.model.fake_worker import FakeWorker
from tests.model.leader import Doing, Flight, Leader, WriteApplied, WriteFleet, WriteWeights
from tests.model.promises import PromiseBroken, Promises
from tests.model.wanted import BASE_UID, Wanted, adapter_weights, base_weights, fleet_of
from tests.model.wire import Wire

from fleet_operator.api import names
from fleet_operator.api.conditions import Condition, ConditionType, condition_of
from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core.actions import Admit, AdoptPod, CreatePod, DeletePod, Quarantine
from fleet_operator.core.decision import Decision
from fleet_operator.core.observed import PodView
from fleet_operator.core.transitions import fleet_transitions, weights_transitions

TICK_SECONDS = 1.0
STEPS_TO_CONVERGE = 20
"""So many stages, loads and prompts of one worker after the other bring every fleet to its end."""
LONG_TICK_SECONDS = 20.0
"""As rarely as an operator may look and still renew pauses in time."""
KEPT_VIEWS = 60
NODES = ("node-0", "node-1")


@dataclass
class Faults:
    """Chances, each per opportunity.

    Fields:
        operator_dies_after: so many actions from now on.
    """

    answer_lost: float = 0
    call_lost: float = 0
    answer_late: float = 0
    operator_dies: float = 0
    operator_freezes: float = 0
    stale_view: float = 0
    status_unwritten: float = 0
    api_refuses: float = 0
    operator_dies_after: int | None = None


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


class Simulation:
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
        self.log: list[Entry] = []
        self.pods: dict[str, FakePod] = {}
        self.nodes: dict[str, float | None] = dict.fromkeys(NODES)
        self.bad_versions: set[str] = set()
        self.odd_versions: set[str] = set()
        self.fleet_stored = FleetStatus()
        self.weights_stored: dict[str, WeightsStatus] = {}
        self.applied_written: tuple[str, str] | None = None
        self.lag_seconds = 0.0
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
        return self.leader.weights.get(BASE_UID, WeightsStatus())

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

    # --- what trainers and people do --------------------------------------------------------------

    def publish(self, version: str) -> None:
        """The trainer asks for a version."""
        if version != self.version:
            self.ask("trainer", f"asks for version {version}", {"version": version})

    def control(self, **fields: Any) -> None:
        """A person or the trainer changes other fields of the WeightVersion."""
        said = ", ".join(f"{k}: {v}" for k, v in fields.items())
        self.ask("person", f"sets {said}", fields)

    def ask(self, who: str, told_as: str, fields: dict[str, Any]) -> None:
        assert self.wanted.base is not None
        asked = self.wanted.base.changed(fields)
        self.change(who, told_as, self.wanted.with_weights(BASE_UID, asked))

    def retry(self, word: str) -> None:
        """A person asks for another try of what was given up."""
        assert self.wanted.base is not None
        asked = replace(self.wanted.base, retry=word)
        self.change("person", "asks to try again", self.wanted.with_weights(BASE_UID, asked))

    def scale(self, replicas: int) -> None:
        """A person, or an autoscaler, changes the number of workers."""
        wanted = self.wanted.with_fleet(replicas=replicas)
        self.change("person", f"scales to {replicas}", wanted)

    def change_fleet(self, told_as: str, **fields: Any) -> None:
        """A person changes the fleet's spec, say its template."""
        self.change("person", told_as, self.wanted.with_fleet(**fields))

    def publish_adapter(self, name: str, version: str) -> None:
        """The trainer asks for a version of an adapter."""
        known = dict(self.wanted.weights).get(name)
        asked = known.changed({"version": version}) if known else adapter_weights(name, version)
        told_as = f"asks for version {version} of adapter {name}"
        self.change("trainer", told_as, self.wanted.with_weights(name, asked))

    def change(self, who: str, told_as: str, wanted: Wanted) -> None:
        self.wanted = wanted
        self.wanted_before.append((self.now, wanted))
        self.note(who, told_as)
        self.promises.note_wish()

    def delete(self, pod: FakePod) -> None:
        """A person deletes a pod."""
        self.note("person", f"deletes {pod.name}")
        self._delete(pod)

    # --- what breaks ------------------------------------------------------------------------------

    def kill(self, pod: FakePod, *, back_after_seconds: float = 1.0) -> None:
        """The process of a worker dies; its container starts again."""
        self.note("fault", f"{pod.name} dies")
        if self.node_up(pod) and not pod.ended:
            pod.worker.kill(self.now, back_after_seconds=back_after_seconds)

    def hang(self, pod: FakePod, *, hung: bool = True) -> None:
        """A worker answers nobody any more, though what it was generating goes on; or it does again."""
        self.note("fault", f"{pod.name} {'hangs' if hung else 'goes on'}")
        pod.worker.hung, pod.suspect = hung, True

    def cut_off(self, pod: FakePod, *, cut: bool = True) -> None:
        """The operator reaches a worker no more, clients and the kubelet do; or it does again."""
        self.note("fault", f"{pod.name} is {'cut off' if cut else 'reached again'}")
        pod.cut_off, pod.suspect = cut, True

    def spoil(self, version: str, *pods: FakePod) -> None:
        """A version's files are no good for some workers."""
        self.note("fault", f"{version} is no good for {', '.join(p.name for p in pods)}")
        for pod in pods:
            pod.worker.bad_sources.add(f"/weights/step_{version}")
            pod.suspect = True

    def will_break(self, version: str, pod: FakePod) -> None:
        """Loading a version will break a worker's engine."""
        self.note("fault", f"{version} will break the engine of {pod.name}")
        pod.worker.breaking_versions.add(version)
        pod.suspect = True

    def evict(self, pod: FakePod) -> None:
        """The kubelet ends a pod for good."""
        if pod.ended or pod.deleted_at is not None or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} is evicted")
        pod.worker.drain()
        pod.ended, pod.trouble = "Failed", "Evicted: the node was low on memory"

    def crash_loop(self, pod: FakePod, *, over: bool = False) -> None:
        """A worker's container ends and ends again; or it runs at last."""
        if pod.ended or not self.node_up(pod):
            return
        self.note("fault", f"{pod.name} {'runs again' if over else 'ends again and again'}")
        pod.trouble = "" if over else "CrashLoopBackOff: back-off 5m0s"
        pod.worker.kill(self.now, back_after_seconds=1.0 if over else 1e9)

    def lose_node(self, node: str, *, power: bool) -> None:
        """A node is gone: without power its processes are gone, else only cut off from everybody."""
        self.note("fault", f"{node} {'loses its power' if power else 'is cut off'}")
        self.nodes[node] = self.now
        for pod in self.pods.values():
            if pod.node == node:
                pod.suspect = True
                if power:
                    pod.worker.kill(self.now, back_after_seconds=1e9)

    def return_node(self, node: str) -> None:
        """It comes back; what had no power starts."""
        self.note("fault", f"{node} is back")
        self.nodes[node] = None
        for pod in self.pods.values():
            if pod.node == node and pod.worker.started_at > self.now and not pod.trouble:
                pod.worker.started_at = self.now
            if pod.node == node and pod.deleted_at is not None:
                pod.worker.drain()

    # --- operators --------------------------------------------------------------------------------

    def start_operator(self) -> None:
        """A new leader: nothing in memory, a new term."""
        written = {"fleet": self.fleet_stored, **self.weights_stored}
        self.leader = Leader(
            self.leader.term + 1,
            self.fleet_stored,
            dict(self.weights_stored),
            written=written,
            seen_until=self.now,  # it has listed everything
        )
        self.pods_before.append((self.now, self._pod_views()))
        self.note("operator", f"starts, term {self.leader.term}")
        self.promises.note_leader()

    def freeze_operator(self) -> None:
        """The leader stops in the middle, with what it was about to do in its hand."""
        self.note("operator", f"of term {self.leader.term} freezes")
        self.ghosts.append(self.leader)
        self.start_operator()

    def haunt(self, ghost: Leader) -> None:
        """A leader that was frozen goes on where it was, unaware of its successor.

        A worker that has not heard of the successor yet would let itself be opened. There the epoch
        does not help, but that the process asks itself before every call whether it leads
        (`runtime.fenced`).
        """
        action = ghost.todo.popleft() if ghost.todo else None
        if isinstance(action, Admit):
            worker = self.workers.get(action.pod_uid)
            unaware = worker is None or worker.epoch is None or worker.epoch.term <= ghost.term
            action = None if unaware else action
        if action is not None:
            self.do(action, ghost)
        if not ghost.todo:
            self.ghosts.remove(ghost)
        self.check()

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
        self.wire.ask(leader)
        self.promises.note_look(leader)
        before = leader.fleet, dict(leader.weights)
        decision = leader.decide(self.now)
        self.promises.note_decision(leader, decision)
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
            known = weights.get(uid, WeightsStatus())
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
        if leader.fleet != leader.written.get("fleet"):
            found.append(WriteFleet(leader.fleet))
        for uid, status in leader.decision.weights.items():
            if status != leader.written.get(uid):
                found.append(WriteWeights(uid, status))
        applied = leader.decision.rollout.applied
        if self.applied_written != (applied.version, str(applied.source)):
            found.append(WriteApplied(applied))
        return found

    # --- what actions do --------------------------------------------------------------------------

    def do(self, action: Doing, leader: Leader) -> None:
        """Carry an action out, if nothing is in its way."""
        match action:
            case WriteFleet() | WriteWeights() | WriteApplied():
                if not self.happens(self.faults.status_unwritten):
                    self._write(action, leader)
            case CreatePod() | DeletePod() | Quarantine() | AdoptPod():
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
                self.fleet_stored = leader.written["fleet"] = action.status
            case WriteWeights():
                self.weights_stored[action.uid] = leader.written[action.uid] = action.status
            case WriteApplied():
                self.applied_written = (action.applied.version, str(action.applied.source))
                for worker in self.workers.values():
                    worker.start_version, worker.start_source = self.applied_written

    def _change_pod(
        self, action: CreatePod | DeletePod | Quarantine | AdoptPod, leader: Leader
    ) -> None:
        if isinstance(action, CreatePod):
            self._create(action)
            return
        pod = self.pods.get(action.uid)
        if pod is None:
            return
        match action:
            case DeletePod():
                self.promises.note_deletion(pod, leader)
                leader.deleted.add(pod.uid)
                self._delete(pod)
            case Quarantine():
                pod.quarantine = pod.quarantine or action.reason
            case AdoptPod():
                pod.owner = action.owner["uid"]

    def _delete(self, pod: FakePod) -> None:
        pod.delete(self.now)
        if self.node_up(pod):
            pod.worker.drain()

    def _create(self, action: CreatePod) -> None:
        labels = action.manifest["metadata"]["labels"]
        ordinal = int(labels[names.LABEL_ORDINAL])
        up = [n for n, lost_at in self.nodes.items() if lost_at is None]
        if not up or any(p.ordinal == ordinal for p in self.pods.values()):
            return
        self.serial += 1
        worker = FakeWorker(f"uid-{self.serial}", ordinal, labels[names.LABEL_REVISION], self.now)
        if self.applied_written is not None:
            worker.start_version, worker.start_source = self.applied_written
        worker.label, worker.source = worker.start_version, worker.start_source
        worker.weights = content_of(worker.source)
        worker.bad_sources = {f"/weights/step_{v}" for v in self.bad_versions}
        worker.slow_seconds = self.slow_seconds
        worker.odd_versions = self.odd_versions
        self.pods[worker.uid] = FakePod(worker, up[ordinal % len(up)])

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

    # --- the end ----------------------------------------------------------------------------------

    def mend(self) -> None:
        """Faults end: what is broken is repaired, what is lost comes back."""
        self._end_mischief()
        for node in [n for n, lost_at in self.nodes.items() if lost_at is not None]:
            self.return_node(node)
        for pod in self.pods.values():
            pod.cut_off, pod.worker.hung, pod.worker.lie = False, False, ""
            if pod.trouble and not pod.ended:
                self.crash_loop(pod, over=True)

    def _end_mischief(self) -> None:
        self.faults, self.lag_seconds, self.between = Faults(), 0.0, None
        self.ghosts.clear()
        self.wire.mend()

    def repair(self) -> None:
        """Every version can be had, and everywhere at the same speed."""
        for worker in self.workers.values():
            worker.breaking_versions.clear()
            worker.bad_sources.clear()
            worker.slow_seconds = self.slow_seconds
        self.bad_versions.clear()

    def converged(self) -> bool:
        """Whether every worker serves what is wanted, and the status says so."""
        serving = [p for p in self.pods.values() if self.serves(p)]
        versions = {p.worker.weights for p in serving}
        return (
            len(self.pods) == len(serving) == self.replicas
            and versions == {self.version}
            and self.weights.phase is RolloutPhase.APPLIED
            and self._statuses_are_of_today()
            and self.fleet.updated_replicas == self.replicas
            and all(self._has_adapters(p.worker) for p in serving)
            and not any(w.work or w.staging for w in self.workers.values())
        )

    def _statuses_are_of_today(self) -> bool:
        base = self.wanted.base
        fleet = self.fleet.observed_generation == self.wanted.generation
        return fleet and (base is None or self.weights.observed_generation == base.generation)

    def _has_adapters(self, worker: FakeWorker) -> bool:
        adapters = (a.view(uid).spec for uid, a in self.wanted.weights if uid != BASE_UID)
        return worker.adapters == {spec.adapter: spec.version for spec in adapters}

    def settle(self, bound: int = 400) -> None:
        """With faults ended, let time pass until everything is as wanted. What was given up since
        something was still slow from before is asked for once more.
        """
        converges = self._converges(bound)
        if not converges and self.weights.phase is RolloutPhase.HALTED:
            self.retry("now that all is well")
            converges = self._converges(bound)
        if not converges:
            if self.converged():
                self.fail(7, "a converged fleet is written about for ever")
            self.fail(6, f"not converged on {self.version} after {bound} reconciles")

    def settle_or_say(self, bound: int = 400) -> None:
        """With faults ended but not repaired, converge, or say what is wrong."""
        if self._converges(bound) or self.weights.phase is RolloutPhase.SUSPENDED:
            return
        adapters = (
            condition_of(s.conditions, ConditionType.STALLED) for s in self.leader.weights.values()
        )
        if self.replicas and not self.stalled and not any(adapters):
            self.fail(6, f"neither on {self.version} after {bound} reconciles nor stalled")

    def endure(self) -> None:
        """What is broken stays broken, and nothing new happens: no rollout stays where it is without
        a word. Operators, the wire and the caches are well from now on.
        """
        self._end_mischief()
        for _ in range(int(self.promises.longest_rollout_seconds / LONG_TICK_SECONDS) + 1):
            self.reconcile()
            self.tick(0.1)  # what it has asked for is answered, and it looks again
            self.reconcile()
            self.tick(LONG_TICK_SECONDS)
        decision, phase = self.decide(), self.weights.phase
        waits = phase in {RolloutPhase.APPLIED, RolloutPhase.SUSPENDED, RolloutPhase.HALTED}
        # Without workers it has not begun; but neither has it while another one is under way.
        waits |= phase is RolloutPhase.PENDING and not decision.rollout.step.disturbed
        if not waits and not self.stalled:
            self.fail(6, f"version {self.version} is {phase} for ever, and nobody says why")

    def _converges(self, bound: int) -> bool:
        self.mend()
        slowest = max((w.slow_seconds for w in self.workers.values()), default=self.slow_seconds)
        for _ in range(bound + int(STEPS_TO_CONVERGE * slowest)):
            self.tick(0.1 if self.reconcile() else TICK_SECONDS)
            self._do_what_a_person_would()
            if self.converged() and not self.reconcile():
                return True
        return False

    def _do_what_a_person_would(self) -> None:
        """Budgets that are used up ask for it: "find the cause, then delete the pod"."""
        if self.leader.decision is not None and self.leader.decision.pods.exhausted:
            for pod in self.pods.values():
                if pod.quarantine or pod.ended:
                    self._delete(pod)

    def until(self, condition: Callable[[], object], bound: int = 300) -> None:
        """Reconcile, and let time pass where nothing is to be done, until something holds."""
        for _ in range(bound):
            if condition():
                return
            if not self.reconcile():
                self.tick()
        self.fail(6, "the condition was never met")

    def look(self, reconciles: int = 20, seconds: float = TICK_SECONDS) -> None:
        """Let some time pass."""
        for _ in range(reconciles):
            self.reconcile()
            self.tick(seconds)

    def run_quietly(self, reconciles: int = 10) -> int:
        """Writes of a fleet at rest over some more reconciles."""
        before = self.writes
        self.look(reconciles)
        return self.writes - before

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
