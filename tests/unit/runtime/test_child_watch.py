"""What others do to a fleet's Services is noticed when it happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.support import virtual_time
from tests.support.builders import FLEET_UID, make_fleet, make_worker, target
from tests.support.fake_kube import FakeCluster

from fleet_operator.runtime.child_watch import ChildWatch
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.objects import Objects

KEY = ("rl", "policy")
SERVICE = "/api/v1/namespaces/rl/services/policy"
FLEET = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
BUDGET = "/apis/policy/v1/namespaces/rl/poddisruptionbudgets/policy"
OBSERVED = make_fleet(make_worker().serving("1"))


class Fleet:
    """One fleet's children, and who is told of what happens to them."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(FLEET, {"metadata": {"uid": FLEET_UID}})
        kube = self.cluster.client()
        self.objects = Objects(kube, Metrics())
        self.changes: list[tuple[str, str]] = []
        self.watch = ChildWatch(
            kube, (None,), self.objects.differs, self.changes.append, lambda _read, _error: None
        )

    async def reconcile(self) -> None:
        for write in self.objects.children(OBSERVED, target("1")).values():
            await write()


@asynccontextmanager
async def watched() -> AsyncIterator[Fleet]:
    fleet = Fleet()
    await fleet.reconcile()
    task = asyncio.create_task(fleet.watch.run())
    await asyncio.sleep(0.01)
    try:
        yield fleet
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("path", [SERVICE, BUDGET])
def test_a_child_that_is_deleted_is_made_again(path):
    async def story() -> None:
        async with watched() as fleet:
            fleet.cluster.drop(path)
            await asyncio.sleep(0.01)
            assert fleet.changes == [KEY]
            await fleet.reconcile()
            assert path in fleet.cluster.objects

    virtual_time.run(story())


def test_a_selector_that_somebody_changes_is_put_right():
    async def story() -> None:
        async with watched() as fleet:
            changed = fleet.cluster.objects[SERVICE]
            before = changed["spec"]["selector"]
            changed = changed | {"spec": changed["spec"] | {"selector": {"app": "another"}}}
            fleet.cluster.put(SERVICE, changed)
            await asyncio.sleep(0.01)
            assert fleet.changes == [KEY]
            await fleet.reconcile()
            assert fleet.cluster.objects[SERVICE]["spec"]["selector"] == before

    virtual_time.run(story())


def test_labels_that_somebody_takes_away_are_put_back():
    async def story() -> None:
        async with watched() as fleet:
            bare = dict(fleet.cluster.objects[SERVICE])
            labels = bare["metadata"].pop("labels")
            fleet.cluster.put(SERVICE, bare)
            await asyncio.sleep(0.01)
            assert fleet.changes == [KEY]
            await fleet.reconcile()
            assert fleet.cluster.objects[SERVICE]["metadata"]["labels"] == labels

    virtual_time.run(story())


def test_our_own_writes_and_what_others_add_disturb_nobody():
    async def story() -> None:
        async with watched() as fleet:
            busy = fleet.cluster.objects[BUDGET] | {"status": {"currentHealthy": 3}}
            fleet.cluster.put(BUDGET, busy)
            await asyncio.sleep(0.01)
            fleet.objects.forget_written()
            await fleet.reconcile()
            await asyncio.sleep(0.01)
            assert fleet.changes == []

    virtual_time.run(story())


def test_what_carries_our_label_and_belongs_to_no_fleet_is_nobodys_matter():
    async def story() -> None:
        async with watched() as fleet:
            labels = {"app.kubernetes.io/managed-by": "rlfleet"}
            metadata = {"name": "other", "namespace": "rl", "uid": "other", "labels": labels}
            fleet.cluster.put("/api/v1/namespaces/rl/services/other", {"metadata": metadata})
            await asyncio.sleep(0.01)
            fleet.cluster.drop("/api/v1/namespaces/rl/services/other")
            await asyncio.sleep(0.01)
            assert fleet.changes == []

    virtual_time.run(story())
