"""The operator notices changes of a fleet's Services when they happen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from tests.support.builders import FLEET_UID, make_fleet, make_worker, target
from tests.support.fake_kube import FakeCluster

from fleet_operator.errors import NameTaken
from fleet_operator.runtime.child_watch import ChildWatch
from fleet_operator.runtime.kube_children import KubeChildren
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_operator.runtime.unread_objects import UnreadObjects

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
SERVICE = "/api/v1/namespaces/rl/services/policy"
FLEET = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
BUDGET = "/apis/policy/v1/namespaces/rl/poddisruptionbudgets/policy"
OBSERVED = make_fleet(make_worker().serving("1"))


class Fleet:
    """One fleet's children, and the keys that their changes wake."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.cluster.put(FLEET, {"metadata": {"uid": FLEET_UID}})
        kube = self.cluster.client()
        self.children = KubeChildren(kube, Metrics())
        self.changes: list[tuple[str, str]] = []
        self.routers = RouterObjects()
        self.watch = ChildWatch(
            kube,
            (None,),
            lambda _, path, found: self.children.differs(path, found),
            self.changes.append,
            lambda _read, _error: None,
            UnreadObjects(self.changes.append),
            self.routers,
        )

    async def reconcile(self) -> None:
        for write in self.children.due(OBSERVED, target("1")).values():
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
async def test_a_deleted_child_is_created_again(path):
    async with watched() as fleet:
        fleet.cluster.drop(path)
        await asyncio.sleep(0.01)
        assert fleet.changes == [KEY]
        await fleet.reconcile()
        assert path in fleet.cluster.objects


async def test_a_changed_selector_is_restored():
    async with watched() as fleet:
        changed = fleet.cluster.objects[SERVICE]
        before = changed["spec"]["selector"]
        changed = changed | {"spec": changed["spec"] | {"selector": {"app": "another"}}}
        fleet.cluster.put(SERVICE, changed)
        await asyncio.sleep(0.01)
        assert fleet.changes == [KEY]
        await fleet.reconcile()
        assert fleet.cluster.objects[SERVICE]["spec"]["selector"] == before


async def test_removed_labels_are_restored():
    async with watched() as fleet:
        bare = dict(fleet.cluster.objects[SERVICE])
        labels = bare["metadata"].pop("labels")
        fleet.cluster.put(SERVICE, bare)
        await asyncio.sleep(0.01)
        assert fleet.changes == [KEY]
        await fleet.reconcile()
        assert fleet.cluster.objects[SERVICE]["metadata"]["labels"] == labels


async def test_own_writes_and_foreign_fields_cause_no_reconcile():
    async with watched() as fleet:
        busy = fleet.cluster.objects[BUDGET] | {"status": {"currentHealthy": 3}}
        fleet.cluster.put(BUDGET, busy)
        await asyncio.sleep(0.01)
        fleet.children.forget_written()
        await fleet.reconcile()
        await asyncio.sleep(0.01)
        assert fleet.changes == []


async def test_an_object_with_our_label_and_no_fleet_is_ignored():
    async with watched() as fleet:
        labels = {"app.kubernetes.io/managed-by": "rlfleet"}
        metadata = {"name": "other", "namespace": "rl", "uid": "other", "labels": labels}
        fleet.cluster.put("/api/v1/namespaces/rl/services/other", {"metadata": metadata})
        await asyncio.sleep(0.01)
        fleet.cluster.drop("/api/v1/namespaces/rl/services/other")
        await asyncio.sleep(0.01)
        assert fleet.changes == []


ROUTER = "/apis/apps/v1/namespaces/rl/deployments/policy-router"
ROUTER_SERVICE = "/api/v1/namespaces/rl/services/policy-router"


async def test_a_router_is_made_again_counted_and_deleted_with_its_field():
    routed = make_fleet(make_worker().serving("1"), router={"image": "router:1"})

    async with watched() as fleet:

        async def reconcile(observed) -> None:
            seen = replace(observed, router=fleet.routers.of(KEY, FLEET_UID))
            for write in fleet.children.due(seen, target("1")).values():
                await write()
            await asyncio.sleep(0.01)

        await reconcile(routed)
        fleet.cluster.drop(ROUTER)
        await asyncio.sleep(0.01)
        fleet.changes.clear()
        await reconcile(routed)
        stored = fleet.cluster.objects[ROUTER]
        fleet.changes.clear()
        fleet.cluster.put(ROUTER, stored | {"status": {"readyReplicas": 1}})
        await asyncio.sleep(0.01)
        assert fleet.changes == [KEY], "the status of the fleet shows ready replicas"
        assert fleet.routers.of(KEY, FLEET_UID).ready_replicas == 1
        await reconcile(OBSERVED)
        assert ROUTER not in fleet.cluster.objects
        assert ROUTER_SERVICE not in fleet.cluster.objects
        assert SERVICE in fleet.cluster.objects
        assert fleet.routers.of(KEY, FLEET_UID).objects == ()


async def test_a_deployment_of_that_name_with_another_owner_is_left_alone():
    routed = make_fleet(make_worker().serving("1"), router={"image": "router:1"})
    foreign = {"metadata": {"name": "policy-router", "labels": {}}, "spec": {"replicas": 3}}

    async with watched() as fleet:
        fleet.cluster.put(ROUTER, foreign)
        write = fleet.children.due(routed, target("1"))["Deployment policy-router"]
        with pytest.raises(NameTaken):
            await write()
        assert fleet.cluster.objects[ROUTER]["spec"] == {"replicas": 3}


@pytest.mark.parametrize("owners", [[], [{"uid": "another", "controller": True}]], ids=str)
async def test_an_object_of_another_owner_with_a_routers_labels_is_not_the_router(owners):
    routed = make_fleet(make_worker().serving("1"), router={"image": "router:1"})

    async with watched() as fleet:
        for write in fleet.children.due(routed, target("1")).values():
            await write()
        own = fleet.cluster.objects[ROUTER]
        metadata = own["metadata"] | {"name": "copy", "uid": "copy", "ownerReferences": owners}
        copied = own | {"metadata": metadata, "status": {"readyReplicas": 1}}
        fleet.cluster.put(ROUTER.replace("/policy-router", "/copy"), copied)
        await asyncio.sleep(0.01)
        router = fleet.routers.of(KEY, FLEET_UID)
        assert {o.path for o in router.objects} == {ROUTER, ROUTER_SERVICE}
        assert router.ready_replicas == 0
