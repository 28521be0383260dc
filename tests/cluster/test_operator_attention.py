"""What needs attention is said on the object: foreign names, rights, broken specs, two releases."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.admin import Json
from tests.cluster.support.fixtures import install
from tests.cluster.support.stage import FLEET, Release, Stage

from devcluster import Cluster

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


async def test_a_service_of_somebody_else_is_left_alone_until_its_name_is_free(
    stage: Stage,
) -> None:
    services = f"/api/v1/namespaces/{stage.namespace}/services"
    spec = {"selector": {"app": "other"}, "ports": [{"port": 80}]}
    taken = await stage.admin.create(services, {"metadata": {"name": FLEET}, "spec": spec})
    await stage.start_operator()
    await stage.make_fleet(replicas=1)

    told = await _stalled(stage)
    assert told["reason"] == "NameTaken"
    assert f"Service {FLEET}" in told["message"]
    assert "Reason: NameTaken Status: True Type: Stalled" in await _described(stage)
    left = await stage.admin.get(f"{services}/{FLEET}")
    assert left is not None
    assert left["metadata"]["resourceVersion"] == taken["metadata"]["resourceVersion"]

    await stage.admin.delete(f"{services}/{FLEET}")
    await _recovered(stage)
    assert FLEET in await stage.objects("services")


async def test_a_pod_of_somebody_else_is_left_alone_until_its_name_is_free(stage: Stage) -> None:
    pods = f"/api/v1/namespaces/{stage.namespace}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"nowhere": "yes"}}
    taken = await stage.admin.create(
        pods, {"metadata": {"name": f"{FLEET}-0", "labels": {"app": "other"}}, "spec": spec}
    )
    await stage.start_operator()
    await stage.make_fleet(replicas=2)

    told = await _stalled(stage)
    assert told["reason"] == "NameTaken", told
    assert f"Pod {FLEET}-0 exists already" in told["message"]
    assert "Reason: NameTaken Status: True Type: Stalled" in await _described(stage)
    left = await stage.admin.get(f"{pods}/{FLEET}-0")
    assert left is not None
    assert left["metadata"]["uid"] == taken["metadata"]["uid"]
    assert "ownerReferences" not in left["metadata"]

    await stage.admin.delete(f"{pods}/{FLEET}-0", gracePeriodSeconds=0)
    await stage.applied("1", replicas=2, seconds=90)


async def test_a_right_that_is_taken_away_is_named_and_missed_no_longer_when_it_is_back(
    stage: Stage,
) -> None:
    await stage.start_operator()
    await stage.make_fleet(replicas=1)
    await stage.applied("1", replicas=1)
    role = await stage.admin.get(f"{ROLES}/{stage.release.name}")
    assert role is not None
    without = [_without(rule, "pods", "create") for rule in role["rules"]]
    await stage.admin.merge(f"{ROLES}/{stage.release.name}", {"rules": without})
    try:
        await stage.change_fleet(replicas=2)
        told = await _stalled(stage)
        described = await _described(stage)
    finally:
        await stage.admin.merge(f"{ROLES}/{stage.release.name}", {"rules": role["rules"]})

    assert told["reason"] == "WorkersFailing"
    assert 'cannot create resource "pods"' in told["message"]
    assert "Reason: WorkersFailing Status: True Type: Stalled" in described
    await _recovered(stage)
    await stage.applied("1", replicas=2)


async def test_an_overlay_that_breaks_in_a_rollout_ends_it_and_restarts_nothing(
    stage: Stage,
) -> None:
    await stage.start_operator()
    await stage.make_fleet(replicas=2)
    await stage.applied("1", replicas=2)
    before = {n: p["metadata"]["uid"] for n, p in (await stage.objects("pods")).items()}
    for worker in stage.kubelet.workers:
        worker.slow_seconds = 1
    await stage.publish("2")

    async def under_way() -> bool:
        return await stage.phase() in {"Staging", "Pausing", "Loading"}

    await stage.until(under_way, "the rollout is under way")
    # An API server drops null from a merge patch: it must come in by a whole object.
    fleet = await stage.fleet()
    fleet["spec"]["podOverlay"] = {"spec": {"tolerations": None}}
    await stage.admin.replace(stage.path("inferencefleets"), fleet)

    told = await _stalled(stage)
    assert told["reason"] == "InvalidSpec"
    assert "tolerations" in told["message"]
    assert "Reason: InvalidSpec Status: True Type: Stalled" in await _described(stage)

    async def serve_the_new_one() -> bool:
        return stage.serving == ["2", "2"]

    await stage.until(serve_the_new_one, "the rollout is finished")
    after = {n: p["metadata"]["uid"] for n, p in (await stage.objects("pods")).items()}
    assert after == before

    await stage.change_fleet(podOverlay=None)
    await stage.applied("2", replicas=2)


@pytest.fixture
async def second(devcluster_api: Cluster) -> AsyncIterator[Release]:
    """The chart a second time, over the same namespaces."""
    yield install(devcluster_api, "second", "second-system", "crds.enabled=false")
    devcluster_api.helm("uninstall", "second", "-n", "second-system")
    devcluster_api.kubectl("delete", "namespace", "second-system", "--wait=false")


async def test_of_two_releases_that_overlap_the_second_drives_nothing_and_says_so(
    stage: Stage, second: Release, tmp_path: Path
) -> None:
    await stage.start_operator()
    await stage.make_fleet(replicas=1)
    await stage.applied("1", replicas=1)
    async with Stage(
        stage.cluster, second, tmp_path, namespace=f"{stage.namespace}-second"
    ) as other:
        rival = await other.start_operator()

        async def left() -> bool:
            return await rival.metric("rlfleet_fleets_of_other_operators") >= 1

        await stage.until(left, "the second release leaves the fleet to the first")
        await stage.publish("2")
        await stage.applied("2", replicas=1)
        described = await _described(stage)
        driven = [r for r in rival.proxy.writes if stage.namespace in r.path.split("/")]

    assert "DrivenByAnotherOperator" in described
    assert {r.path.split("?")[0].rsplit("/", 1)[-1] for r in driven} <= {"events"}
    status = (await stage.fleet())["status"]
    assert status["operator"] == f"{stage.release.namespace}/{stage.release.name}"


async def _stalled(stage: Stage) -> dict[str, Any]:
    found: dict[str, Any] = await stage.until(
        lambda: stage.condition("Stalled", of="inferencefleets"), "the fleet is stalled", seconds=90
    )
    return found


async def _recovered(stage: Stage) -> None:
    async def nothing() -> bool:
        return await stage.condition("Stalled", of="inferencefleets") is None

    await stage.until(nothing, "the condition is gone", seconds=90)


async def _described(stage: Stage) -> str:
    """What `kubectl describe` says of the fleet, with its Events, on one line."""

    async def posted() -> str:
        text = await stage.kubectl("describe", f"ifl/{FLEET}")
        return text if "Warning" in text else ""

    return re.sub(r"\s+", " ", await stage.until(posted, "the Event is posted"))


def _without(rule: Json, resource: str, verb: str) -> Json:
    """A rule of a role without a verb of a resource."""
    if resource not in rule.get("resources", ()):
        return rule
    return rule | {"verbs": [v for v in rule["verbs"] if v != verb]}
