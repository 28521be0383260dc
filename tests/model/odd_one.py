"""The odd one: the worker that most faults of a history hit.

Two faults seldom hit the same worker by chance, and most mistakes need a worker that is late twice, say.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tests.model.fake_pods import FakePod
from tests.model.simulator import Simulation

CHANGES = 0.05
"""How often another worker becomes the odd one."""


class OddOne:
    """`share`: of the faults that hit it; the others hit any worker."""

    def __init__(self, fleet: Simulation, share: float) -> None:
        self.fleet, self.share = fleet, share
        self.chance = Random(f"odd one of {fleet.seed}")  # noqa: S311 - repeatable on purpose
        self.uid = ""

    def some_pod(self, chance: Random) -> FakePod | None:
        """A worker for the next fault. `chance`: of the fault. None if there is no worker."""
        pods = [p for p in self.fleet.pods.values() if p.deleted_at is None]
        if not pods:
            return None
        if self.chance.random() >= self.share:
            return chance.choice(pods)
        return self._pod(pods)

    def _pod(self, pods: list[FakePod]) -> FakePod:
        pod = next((p for p in pods if p.uid == self.uid), None)
        if pod is None or self.chance.random() < CHANGES:
            pod = self.chance.choice(pods)
            self.uid = pod.uid
        return pod

    def moments(self) -> Iterator[str]:
        """Its moments now."""
        pod = self.fleet.pods.get(self.uid)
        if pod is None or not self.share:
            return
        worker = pod.worker
        yield f"the odd one is {worker.phase}"
        if worker.staged == self.fleet.version:
            yield "the odd one has staged"
        if worker.label == self.fleet.version:
            yield "the odd one has loaded"
        if worker.load_failure or worker.refused_stages:
            yield "the odd one has refused"
