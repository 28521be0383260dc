"""Problems that need attention are reported on the object: names, rights, broken specs, two releases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.admin import Json
from tests.cluster.support.fixtures import install
from tests.cluster.support.workspace import FLEET, Release, Workspace

from devcluster import Cluster

ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"


@pytest.mark.usefixtures("shared_operator")
async def test_a_foreign_service_is_not_touched_until_its_name_is_free(
    workspace: Workspace,
) -> None:
    services = f"/api/v1/namespaces/{workspace.namespace}/services"
    spec = {"selector": {"app": "other"}, "ports": [{"port": 80}]}
    taken = await workspace.admin.create(services, {"metadata": {"name": FLEET}, "spec": spec})
    await workspace.make_fleet(replicas=1)

    stalled = await _stalled(workspace)
    assert stalled["reason"] == "NameTaken"
    assert f"Service {FLEET}" in stalled["message"]
    assert "Reason: NameTaken Status: True Type: Stalled" in await _described(workspace)
    left = await workspace.admin.get(f"{services}/{FLEET}")
    assert left is not None
    assert left["metadata"]["resourceVersion"] == taken["metadata"]["resourceVersion"]

    await workspace.admin.delete(f"{services}/{FLEET}")
    await _recovered(workspace)
    assert FLEET in await workspace.objects("services")


@pytest.mark.usefixtures("shared_operator")
async def test_a_missing_right_is_named_until_it_is_granted_again(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=1)
    await workspace.applied("1", replicas=1)
    role = await workspace.admin.get(f"{ROLES}/{workspace.release.name}")
    assert role is not None
    without = [_without(rule, "pods", "create") for rule in role["rules"]]
    await workspace.admin.merge(f"{ROLES}/{workspace.release.name}", {"rules": without})
    try:
        await workspace.change_fleet(replicas=2)
        stalled = await _stalled(workspace)
        described = await _described(workspace)
    finally:
        await workspace.admin.merge(f"{ROLES}/{workspace.release.name}", {"rules": role["rules"]})

    assert stalled["reason"] == "WorkersFailing"
    assert 'cannot create resource "pods"' in stalled["message"]
    assert "Reason: WorkersFailing Status: True Type: Stalled" in described
    await _recovered(workspace)
    await workspace.applied("1", replicas=2)


@pytest.fixture
def second(devcluster_api: Cluster) -> Iterator[Release]:
    """The chart a second time, over the same namespaces."""
    yield install(devcluster_api, "second", "second-system", "crds.enabled=false")
    devcluster_api.helm("uninstall", "second", "-n", "second-system")
    devcluster_api.kubectl("delete", "namespace", "second-system", "--wait=false")


@pytest.mark.usefixtures("shared_operator")
async def test_the_second_of_two_overlapping_releases_drives_nothing_and_reports_it(
    workspace: Workspace, second: Release, tmp_path: Path
) -> None:
    await workspace.make_fleet(replicas=1)
    await workspace.applied("1", replicas=1)
    async with Workspace(
        workspace.cluster, second, tmp_path, namespace=f"{workspace.namespace}-second"
    ) as other:
        rival = await other.start_operator()

        async def left() -> bool:
            return await rival.metric("rlfleet_fleets_of_other_operators") >= 1

        await workspace.until(left, "the second release leaves the fleet to the first")
        await workspace.publish("2")
        await workspace.applied("2", replicas=1)
        described = await _described(workspace)
        driven = [r for r in rival.proxy.writes if workspace.namespace in r.path.split("/")]

    assert "DrivenByAnotherOperator" in described
    assert {r.path.split("?")[0].rsplit("/", 1)[-1] for r in driven} <= {"events"}
    status = (await workspace.fleet())["status"]
    assert status["operator"] == f"{workspace.release.namespace}/{workspace.release.name}"


async def _stalled(workspace: Workspace) -> dict[str, Any]:
    found: dict[str, Any] = await workspace.until(
        lambda: workspace.condition("Stalled", of="inferencefleets"),
        "the fleet is stalled",
        seconds=90,
    )
    return found


async def _recovered(workspace: Workspace) -> None:
    async def nothing() -> bool:
        return await workspace.condition("Stalled", of="inferencefleets") is None

    await workspace.until(nothing, "the condition is gone", seconds=90)


async def _described(workspace: Workspace) -> str:
    """The output of `kubectl describe` for the fleet, with its Events, on one line."""

    async def posted() -> str:
        text = await workspace.kubectl("describe", f"ifl/{FLEET}")
        return text if "Warning" in text else ""

    return re.sub(r"\s+", " ", await workspace.until(posted, "the Event is posted"))


def _without(rule: Json, resource: str, verb: str) -> Json:
    """A rule of a role without a verb of a resource."""
    if resource not in rule.get("resources", ()):
        return rule
    return rule | {"verbs": [v for v in rule["verbs"] if v != verb]}
