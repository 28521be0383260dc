"""A simulated fleet whose trainer makes updates of which nothing is left at the precision that is served,
and promise 13.

13. `WeightsUnchanged` says of an applied version what its loads have shown: it is there if every worker
    that could compare saw no parameter change, and only then. What could not be compared counts
    neither way. `Remarks` has what the workers say about its files, and is there only if they say
    anything.
"""

from __future__ import annotations

from typing import Any

from tests.model.fake_worker import FakeWorker
from tests.model.simulator import Simulation

from fleet_operator.core.decision import Decision
from fleet_worker.protocol import ApplyRequest, LoadEffect, LoadRequest
from rlfleet_resources.conditions import condition_of
from rlfleet_resources.reasons import ConditionType

STRATEGIES = ("Synchronized", "InFlight", "Rolling")


class EffectSimulation(Simulation):
    """Fields:

    content: version → what the model holds at the precision that is served; itself by default.
    remarked: version → the remarks of workers on its files.
    blind: ordinals of workers that cannot compare.
    loads: uid of a worker → version, and whether its last load changed nothing; None if that worker
        could not compare.
    """

    def __init__(self, **given: Any) -> None:
        self.content: dict[str, str] = {}
        self.remarked: dict[str, str] = {}
        self.blind: set[int] = set()
        self.loads: dict[str, tuple[str, bool | None]] = {}
        super().__init__(**given)

    def decide(self) -> Decision:
        """Decide, with workers that compare."""
        for worker in self.workers.values():
            worker.compare = self._compare
            worker.remarked = self.remarked
        return super().decide()

    def vanish(self, version: str, before: str) -> None:
        """Nothing of a version's update is left at the precision that is served."""
        self.content[version] = self.content.get(before, before)
        self.note("trainer", f"writes version {version}, which changes nothing")

    def check_effect(self) -> None:
        """Promise 13, of a fleet at rest."""
        loads = (self.loads.get(uid, ("", None)) for uid in self.workers)
        seen = [same for version, same in loads if version == self.version and same is not None]
        warns = condition_of(self.weights.conditions, ConditionType.WEIGHTS_UNCHANGED) is not None
        if warns is not (bool(seen) and all(seen)):
            says = "says" if warns else "does not say"
            self.fail(13, f"WeightsUnchanged {says} that {self.version} changed nothing: {seen}")
        said = condition_of(self.weights.conditions, ConditionType.REMARKS)
        if (said.message if said else None) != self.remarked.get(self.version):
            self.fail(13, f"Remarks does not have the remarks on {self.version}: {said}")

    def _compare(
        self, worker: FakeWorker, request: LoadRequest | ApplyRequest
    ) -> LoadEffect | None:
        before, after = str(worker.label), request.version
        same = self.content.get(before, before) == self.content.get(after, after)
        blind = worker.ordinal in self.blind
        self.loads[worker.uid] = after, None if blind else same
        return LoadEffect(
            version=after,
            run_id=request.run_id,
            compared_with=before,
            compared_with_run_id=worker.run_id,
            compared_with_digest=worker.digest,
            changed_share=None if blind else 0.0 if same else 0.25,
            unchanged=same and not blind,
            compared_elements=0 if blind else 1000,
            elements=1000,
            why_not="padded experts" if blind else "",
        )


def effect_history(seed: int) -> EffectSimulation:
    """One history of updates, some of which vanish, some of which are overtaken."""
    rollout = {"strategy": STRATEGIES[seed % len(STRATEGIES)]}
    slow_seconds = [0.0, 3.0][seed % 2]
    fleet = EffectSimulation(
        seed=seed, replicas=1 + seed % 4, rollout=rollout, slow_seconds=slow_seconds
    )
    chance = fleet.random
    fleet.settle()
    for version in range(2, 8):
        if chance.random() < 0.6:
            fleet.vanish(str(version), str(version - 1))
        if chance.random() < 0.5:
            fleet.remarked[str(version)] = chance.choice(["cast from F32", "ignored: eos_token_id"])
        fleet.blind = {n for n in range(fleet.replicas) if chance.random() < 0.3}
        fleet.publish(str(version))
        if chance.random() < 0.5:
            _overtake(fleet)
            continue
        fleet.settle()
        fleet.check_effect()
    fleet.settle()
    fleet.check_effect()
    return fleet


def _overtake(fleet: EffectSimulation) -> None:
    """Go on until some workers, and not all, have the version, if there is such a moment."""
    for _ in range(40):
        have = sum(w.label == fleet.version for w in fleet.workers.values())
        if 0 < have < len(fleet.workers):
            return
        fleet.reconcile()
        fleet.tick(fleet.random.choice([0.1, 1.0]))
