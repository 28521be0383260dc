"""Small fleets at random, brought to their end by the plan alone: each ends with its replicas.

Played are pods that start, become ready a moment after they are admitted, wait for a scheduling gate,
drain and go. A fleet that fails is printed with its seed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import pytest
from tests.support.builders import IMAGE, NOW, WorkerBuilder, make_fleet, make_worker

from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import unavailable_and_surge
from fleet_operator.core.pod_actions import BeginDrain, CreatePod, DeletePod, EndDrain
from fleet_operator.core.pod_waits import Awaited, PodWait

BLOCKS = 10
FLEETS_PER_BLOCK = 60
MAX_STEPS = 120
QUIET_STEPS = 6
"""More than a pod needs to start and to become ready."""
GATE = PodWait(awaited=Awaited.GATE, reason="SchedulingGated")


@dataclass
class FakePod:
    """`age`: steps since its container started; it is admitted at 2, and ready at 3."""

    ordinal: int
    uid: str
    revision: str
    age: int = 0
    gated: bool = False
    marked: bool = False
    fenced: bool = False
    requests: int = 0

    @property
    def serves(self) -> bool:
        return self.age >= 2 and not (self.gated or self.marked or self.fenced)

    def worker(self) -> WorkerBuilder:
        worker = make_worker(self.ordinal).of_revision(self.revision).with_uid(self.uid)
        if self.gated:
            return worker.not_running().awaiting(GATE)
        if self.fenced or self.age < 2:
            worker = worker.joining("base")
        else:
            worker = worker.serving("base").with_requests(self.requests)
            worker = worker if self.age >= 3 else worker.unready()
        return worker.draining_since(NOW) if self.marked else worker

    def tick(self) -> None:
        self.age += not self.gated
        self.fenced = self.fenced and self.marked


@dataclass
class FakeFleet:
    """A fleet after some change of its spec, and the pods that it has by then."""

    seed: int
    spec: FleetObserved = field(init=False)
    pods: list[FakePod] = field(init=False)
    held_back: int = field(init=False)
    made: int = 0

    def __post_init__(self) -> None:
        chance = random.Random(self.seed)  # noqa: S311 - repeatable on purpose
        update: dict[str, object] = {
            "maxUnavailable": chance.choice([0, 1, 2, "25%", "50%"]),
            "maxSurge": chance.choice([0, 1, 2, "25%", "100%"]),
            "type": chance.choice(["RollingUpdate", "RollingUpdate", "RollingUpdate", "OnDelete"]),
            "paused": chance.random() < 0.2,
        }
        if update["maxUnavailable"] == update["maxSurge"] == 0:
            update["maxSurge"] = 1
        management = "External" if chance.random() < 0.25 else "Operator"
        self.spec = make_fleet(
            replicas=chance.randint(0, 4),
            update=update,
            weights={"roots": ["/weights"], "management": management},
        )
        self.pods = [
            FakePod(
                ordinal=n,
                uid=f"u{n}",
                revision=chance.choice([self.revision, "old"]),
                age=chance.choice([0, 3, 3, 3]),
                gated=chance.random() < 0.2,
                requests=chance.randint(0, 3),
            )
            for n in range(chance.randint(0, 6))
        ]
        self.held_back = sum(p.gated and p.revision == "old" for p in self.pods)
        assert self.spec.template is not None
        template = replace(self.spec.template, held_back=self.held_back)
        self.spec = replace(self.spec, template=template)

    @property
    def revision(self) -> str:
        assert self.spec.template is not None
        return self.spec.template.revision

    @property
    def replicas(self) -> int:
        return self.spec.spec.replicas

    @property
    def is_held(self) -> bool:
        return self.spec.spec.update.is_held

    @property
    def outdated(self) -> int:
        return sum(p.revision != self.revision for p in self.pods)

    def run(self) -> None:
        """Until nothing has changed for a while."""
        quiet = 0
        for _ in range(MAX_STEPS):
            quiet = 0 if self.step() else quiet + 1
            if quiet > QUIET_STEPS:
                return
        self.fail("it never comes to rest")

    def step(self) -> bool:
        workers = sorted((p.worker().view() for p in self.pods), key=lambda w: w.pod.ordinal)
        observed = replace(self.spec, workers=tuple(workers))
        plan = plan_fleet(observed, default_image=IMAGE, holds_requests=False, now=NOW)
        before = sum(p.serves for p in self.pods)
        self.carry_out(plan)
        self.enough_serve(before)
        for pod in self.pods:
            pod.tick()
        return bool(plan.actions or plan.calls)

    def carry_out(self, plan: FleetPlan) -> None:
        by_uid = {p.uid: p for p in self.pods}
        for action in plan.actions:
            match action:
                case CreatePod():
                    self.made += 1
                    ordinal = int(action.pod_name.rpartition("-")[2])
                    assert ordinal not in {p.ordinal for p in self.pods}
                    self.pods.append(FakePod(ordinal, f"made-{self.made}", self.revision))
                case DeletePod():
                    self.pods.remove(by_uid[action.pod_uid])
                case BeginDrain():
                    by_uid[action.pod_uid].marked = True
                case EndDrain():
                    by_uid[action.pod_uid].marked = False
        for call in plan.calls:
            by_uid[call.pod_uid].fenced = True

    def enough_serve(self, before: int) -> None:
        """No template change takes one away below `replicas - maxUnavailable`; pods that a gate held
        back before it are not replicas there.
        """
        unavailable, _ = unavailable_and_surge(self.spec.spec.update, self.replicas)
        after = sum(p.serves for p in self.pods)
        least = self.replicas - self.held_back - unavailable
        if not self.is_held and after < min(before, least):
            self.fail(f"{after} serve of {before}")

    def fail(self, why: str) -> None:
        spec = self.spec.spec
        pods = "\n".join(map(str, self.pods))
        pytest.fail(
            f"seed {self.seed}: {why}\n{self.replicas} replicas, {spec.weights.management}, "
            f"{spec.update}, current revision {self.revision}\n{pods}"
        )


@pytest.mark.parametrize("block", range(BLOCKS))
def test_a_fleet_reaches_its_replicas(block):
    for seed in range(block * FLEETS_PER_BLOCK, (block + 1) * FLEETS_PER_BLOCK):
        fleet = FakeFleet(seed)
        _, surge = unavailable_and_surge(fleet.spec.spec.update, fleet.replicas)
        fleet.run()
        spare = len(fleet.pods) - fleet.replicas
        # A gate may hold up an update, and its spare workers with it; a scale-down, never.
        if not 0 <= spare <= surge:
            fleet.fail(f"{spare} workers beyond the replicas, at most {surge} may be")
        if spare and (fleet.is_held or not any(p.gated for p in fleet.pods)):
            fleet.fail(f"{spare} workers stay beyond the replicas")
        for pod in fleet.pods:
            pod.gated = False
        fleet.run()
        if len(fleet.pods) != fleet.replicas:
            fleet.fail(f"{len(fleet.pods)} workers at the end")
        if fleet.outdated and not fleet.is_held:
            fleet.fail("outdated workers are left")
        ordinals = sorted(p.ordinal for p in fleet.pods)
        if fleet.spec.is_external and ordinals != list(range(fleet.replicas)):
            fleet.fail("an External fleet has other ordinals than its trainer knows")
