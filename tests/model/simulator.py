"""Runs the real planners against a fake fleet, with faults, and checks the promises all the time.

The simulator plays the runtime: observe (perhaps late), plan, send the calls one by one (perhaps
losing the answer, perhaps dying in between), write the statuses (perhaps not). After every single
call the invariants are checked. Everything random comes from one seed, which every failure prints.

Invariants (docs/explanation/how-it-works.md tells them in words):
 1. a token's label names the weights that made it;
 2. no two workers in service generate with different weights at the same time (Synchronized);
 3. no pause outlives its lease;
 4. the weights in service never go back, unless the trainer says so;
 5. in `keep`, a request is lost only by a worker that died or was fenced for a failure;
 6. with faults ended, the fleet converges within a bound;
 7. a converged fleet writes nothing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tests.model.fake_worker import FakeWorker

from fleet_operator.api.fleet import FleetSpec, FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsSpec, WeightsStatus
from fleet_operator.core.actions import CreatePod, DeletePod, Quarantine, WorkerCall
from fleet_operator.core.calls import LEASE_SECONDS
from fleet_operator.core.fleet_plan import plan_fleet
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.observed import FleetObserved, WeightsView, WorkerView
from fleet_operator.core.rollout_plan import plan_rollout
from fleet_operator.core.weights_status import weights_status
from fleet_worker.protocol import Epoch, Phase, Reason, WorkerState

EPOCH_START = datetime(2026, 1, 1, tzinfo=UTC)
TICK_SECONDS = 1.0
RESULT = tuple[WorkerState, Reason | None]


class InvariantBroken(AssertionError):
    """A promise did not hold; the message holds the log that led there."""


@dataclass
class Faults:
    """Chances, each per opportunity."""

    answer_lost: float = 0
    call_lost: float = 0
    operator_dies: float = 0
    stale_view: float = 0
    status_unwritten: float = 0
    operator_dies_after: int | None = None


@dataclass
class Simulation:
    seed: int
    replicas: int = 3
    slow_seconds: float = 0
    management: str = "Operator"
    faults: Faults = field(default_factory=Faults)
    rollout: dict[str, object] = field(default_factory=dict)
    now: float = 0
    steps: int = 0
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - repeatable on purpose
        self.workers: dict[str, FakeWorker] = {}
        self.generation = 1
        self.version = "1"
        self.controls: dict[str, object] = {}
        self.retry = ""
        self.published = ["base", "1"]
        self.rewound = False
        self.bad_versions: set[str] = set()
        self.odd_versions: set[str] = set()
        self.fleet_stored = FleetStatus()
        self.weights_stored = WeightsStatus()
        self.serial = 0
        self.served = "base"
        self.writes = 0
        self.start_operator()

    @property
    def strategy(self) -> object:
        overrides: dict[str, object] = self.controls.get("rollout", {})
        both = self._spec() | {"rollout": self.rollout | overrides}
        rollout = FleetSpec.model_validate(both).rollout
        return rollout.canary.then if rollout.strategy == "Canary" else rollout.strategy

    # --- what trainers, people and bad luck do ---------------------------------------------

    def publish(self, version: str) -> None:
        """The trainer asks for a version."""
        if version == self.version:
            return
        self.version, self.generation = version, self.generation + 1
        self.published.append(version)
        self.note(f"trainer asks for {version}")

    def control(self, **fields: object) -> None:
        """A person or the trainer changes other fields of the WeightVersion."""
        self.controls |= fields
        self.generation += 1
        self.note(f"controls are {self.controls}")

    def start_operator(self) -> None:
        """A new leader: nothing in memory, a new term."""
        self.term = getattr(self, "term", 0) + 1
        self.fleet_computed: FleetStatus | None = None
        self.weights_computed: WeightsStatus | None = None
        self.known: dict[str, tuple[WorkerState, float, int]] = {}
        self.silent_since: dict[str, float] = {}
        self.goal, self.sequence = "", 0
        if self.strategy != "Synchronized" and self.fleet_stored.applied is not None:
            self.served = self.fleet_stored.applied.version
        self.note(f"operator starts, term {self.term}")

    def tick(self, seconds: float = TICK_SECONDS) -> None:
        """Time passes."""
        self.now += seconds
        for worker in list(self.workers.values()):
            worker.tick(self.now)
            if worker.deleting:
                del self.workers[worker.uid]
        self.check()

    # --- one reconcile ----------------------------------------------------------------------

    def reconcile(self) -> bool:
        """Observe, plan, apply, status. Returns: whether anything was done or written."""
        self.steps += 1
        self.now += 0.001  # nothing takes no time at all
        observed = self.observe()
        now = EPOCH_START + timedelta(seconds=self.now)
        plan = plan_rollout(observed, now=now)
        if self.happens(self.faults.operator_dies):
            self.start_operator()
            return True
        self.check_applied(plan.applied.version)
        disturbed = plan.step.disturbed
        pods = plan_fleet(observed, default_image="image", disturbed=disturbed, now=now)
        fleet = fleet_status(observed, plan, pods, now=now)
        steered = next(iter(observed.weights), None)
        weights = self.weights_stored
        if steered is not None:
            weights = weights_status(observed, steered, plan, now=now)
        if plan.step.goal.version != self.goal:
            self.goal, self.sequence = plan.step.goal.version, self.sequence + 1
        # As in the runtime, what is decided is known to the operator before anything is done.
        self.fleet_computed, self.weights_computed = fleet, weights
        actions = [*plan.step.actions, *pods.actions]
        self.random.shuffle(actions)
        for action in actions:
            if self.happens(self.faults.operator_dies) or self.faults.operator_dies_after == 0:
                self.faults.operator_dies_after = None
                self.note("operator dies between two actions")
                self.start_operator()
                return True
            self.apply(action, plan.applied.version, str(plan.applied.source))
            self.check()
            if self.faults.operator_dies_after is not None:
                self.faults.operator_dies_after -= 1
        self.write(fleet, weights)
        return bool(actions)

    def observe(self) -> FleetObserved:
        in_order = sorted(self.workers.values(), key=lambda w: w.ordinal)
        views = [self.view(worker) for worker in in_order]
        view = WeightsView(
            name="policy",
            namespace="rl",
            uid="wv",
            generation=self.generation,
            created_at=EPOCH_START,
            spec=WeightsSpec.model_validate(
                {
                    "fleetRef": {"name": "policy"},
                    "version": self.version,
                    "source": {"path": "/weights/step_{version}"},
                }
                | self.controls
            ),
            retry=self.retry,
            status=self.weights_computed or self.weights_stored,
        )
        return FleetObserved(
            name="policy",
            namespace="rl",
            uid="fleet",
            generation=1,
            spec=self.spec(),
            status=self.fleet_computed or self.fleet_stored,
            weights=(view,) if self.management == "Operator" else (),
            workers=tuple(views),
        )

    def spec(self) -> FleetSpec:
        return FleetSpec.model_validate(self._spec() | {"rollout": self.rollout})

    def _spec(self) -> dict[str, object]:
        return {
            "replicas": self.replicas,
            "model": {"name": "m", "source": {"path": "/models/base"}},
            "weights": {"roots": ["/weights"], "management": self.management},
        }

    def view(self, worker: FakeWorker) -> WorkerView:
        pod = worker.pod()
        last = self.known.get(worker.uid)
        if last is not None and last[2] != worker.restarts:
            last = None
        fresh = last is None or not self.happens(self.faults.stale_view)
        if fresh and (worker.unreachable or worker.phase is Phase.STARTING):
            self.silent_since.setdefault(worker.uid, self.now)
        elif fresh:
            self.silent_since.pop(worker.uid, None)
            last = (worker.state(self.now), self.now, worker.restarts)
            self.known[worker.uid] = last
        silent = self.silent_since.get(worker.uid)
        return WorkerView(
            pod=pod,
            state=last[0] if last else None,
            state_age_seconds=self.now - last[1] if last else 0,
            silent_seconds=max(self.now - silent, 0.001) if silent is not None else 0,
            silence="time-out",
        )

    def apply(self, action: object, applied: str, applied_source: str) -> None:
        match action:
            case CreatePod():
                self.create(action, applied, applied_source)
            case DeletePod():
                if action.uid in self.workers:
                    worker = self.workers[action.uid]
                    worker.deleting, worker.admitted, worker.phase = True, False, Phase.DRAINING
            case Quarantine():
                if action.uid in self.workers:
                    self.workers[action.uid].quarantine = action.reason
            case _:
                self.call(action)  # type: ignore[arg-type]
        told = getattr(action, "key", type(action).__name__)
        name = getattr(action, "pod_name", getattr(action, "name", ""))
        self.note(f"{told} on {name}")

    def create(self, action: CreatePod, applied: str, source: str) -> None:
        labels = action.manifest["metadata"]["labels"]
        ordinal = int(labels["rlfleet.dev/ordinal"])
        if any(w.ordinal == ordinal for w in self.workers.values()):
            return
        self.serial += 1
        worker = FakeWorker(f"uid-{self.serial}", ordinal, labels["rlfleet.dev/revision"], self.now)
        worker.start_version, worker.start_source = applied, source
        worker.label = worker.weights = applied
        worker.source = source
        worker.bad_sources = {f"/weights/step_{v}" for v in self.bad_versions}
        worker.slow_seconds = self.slow_seconds
        worker.odd_versions = self.odd_versions
        self.workers[worker.uid] = worker

    def call(self, action: WorkerCall) -> None:
        worker = self.workers.get(action.pod_uid)
        if worker is None or worker.phase is Phase.STARTING or worker.unreachable:
            self.silent_since.setdefault(action.pod_uid, self.now)
            return
        if self.happens(self.faults.call_lost):
            self.silent_since.setdefault(action.pod_uid, self.now)
            return
        epoch = Epoch(term=self.term, sequence=self.sequence)
        state, reason = worker.call(action, epoch, self.now)
        if reason is Reason.STALE_EPOCH:
            raise InvariantBroken(f"the only leader was refused as old\n{self.story()}")
        if self.happens(self.faults.answer_lost):
            self.silent_since.setdefault(action.pod_uid, self.now)
            return
        self.known[worker.uid] = (state, self.now, worker.restarts)

    def write(self, fleet: FleetStatus, weights: WeightsStatus) -> None:
        changed = fleet != self.fleet_stored or weights != self.weights_stored
        if changed and not self.happens(self.faults.status_unwritten):
            self.fleet_stored, self.weights_stored = fleet, weights
            self.writes += 1
        for worker in self.workers.values():
            if fleet.applied is not None:
                worker.start_version = fleet.applied.version
                worker.start_source = str(fleet.applied.source)

    # --- promises ---------------------------------------------------------------------------

    def check(self) -> None:
        generating = [w for w in self.workers.values() if w.generates]
        for worker in generating:
            if worker.label != worker.weights:
                self.fail(f"{worker.name} labels {worker.weights} as {worker.label}")
        if odd := {w.weights for w in generating} & self.odd_versions:
            self.fail(f"clients get tokens of {odd}, which no canary may let pass")
        in_service = {w.weights for w in generating if w.in_service}
        if (
            len(in_service) > 1
            and self.strategy == "Synchronized"
            and (self.management == "Operator")
        ):
            self.fail(f"{sorted(in_service)} generate at the same time")
        for worker in self.workers.values():
            held = self.now - worker.renewed_at
            if worker.phase is Phase.PAUSED and held > LEASE_SECONDS + worker.slow_seconds + (
                TICK_SECONDS
            ):
                self.fail(f"{worker.name} has been paused since {worker.renewed_at}")
        if len(in_service) == 1 and self.strategy == "Synchronized":
            (version,) = in_service
            if self.order(version) < self.order(self.served) and not self.forgotten():
                self.fail(f"the fleet went back from {self.served} to {version}")
            self.served = version

    def check_applied(self, version: str) -> None:
        """Where versions mix, what counts is what the fleet says that it applied."""
        if self.strategy == "Synchronized":
            return
        if self.order(version) < self.order(self.served):
            self.fail(f"the applied version went back from {self.served} to {version}")
        self.served = version

    def forgotten(self) -> bool:
        """Whether nobody alive and nothing written knows that the newer version was served.

        It takes an operator that dies before its status is stored and the death of every worker.
        """
        status = self.fleet_computed or self.fleet_stored
        recorded = status.applied is not None and status.applied.version == self.served
        living = any(w.weights == self.served and w.admitted for w in self.workers.values())
        return not recorded and not living

    def order(self, version: str) -> int:
        return self.published.index(version)

    def converged(self) -> bool:
        serving = [w for w in self.workers.values() if w.generates and w.in_service]
        return (
            len(self.workers) == len(serving) == self.replicas
            and {w.weights for w in serving} == {self.version}
            and (self.weights_computed or self.weights_stored).phase is RolloutPhase.APPLIED
        )

    def settle(self, bound: int = 400) -> None:
        """With faults ended, reconcile and let time pass until converged."""
        self.faults = Faults()
        for worker in self.workers.values():
            worker.unreachable = False
        for _ in range(bound):
            self.tick(0.1 if self.reconcile() else TICK_SECONDS)
            if self.converged() and not self.reconcile():
                return
        self.fail(f"not converged on {self.version} after {bound} reconciles")

    def run_quietly(self) -> int:
        """Writes of a converged fleet over ten more reconciles."""
        before = self.writes
        for _ in range(10):
            self.reconcile()
            self.tick()
        return self.writes - before

    # --- telling ------------------------------------------------------------------------------

    def happens(self, chance: float) -> bool:
        return chance > 0 and self.random.random() < chance

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:8.1f}  {text}")

    def story(self) -> str:
        state = "\n".join(
            f"    {w.name} {w.phase} admitted={w.admitted} label={w.label} staged={w.staged} "
            f"quarantine={w.quarantine!r} unreachable={w.unreachable}"
            for w in self.workers.values()
        )
        return f"seed {self.seed}\n" + "\n".join(self.log[-60:]) + f"\n{state}"

    def fail(self, text: str) -> None:
        raise InvariantBroken(f"{text}\n{self.story()}")


def with_faults(simulation: Simulation, **chances: float) -> None:
    """Switch faults on."""
    simulation.faults = replace(simulation.faults, **chances)
