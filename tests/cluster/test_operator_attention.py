"""Problems that need attention are reported on the object: names, rights, broken specs, two releases."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.admin import ApiError, Json
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
async def test_a_foreign_pod_is_not_touched_until_its_name_is_free(workspace: Workspace) -> None:
    pods = f"/api/v1/namespaces/{workspace.namespace}/pods"
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeSelector": {"nowhere": "yes"}}
    taken = await workspace.admin.create(
        pods, {"metadata": {"name": f"{FLEET}-0", "labels": {"app": "other"}}, "spec": spec}
    )
    await workspace.make_fleet(replicas=2)

    stalled = await _stalled(workspace)
    assert stalled["reason"] == "NameTaken", stalled
    assert f"Pod {FLEET}-0 exists already" in stalled["message"]
    assert "Reason: NameTaken Status: True Type: Stalled" in await _described(workspace)
    left = await workspace.admin.get(f"{pods}/{FLEET}-0")
    assert left is not None
    assert left["metadata"]["uid"] == taken["metadata"]["uid"]
    assert "ownerReferences" not in left["metadata"]

    await workspace.admin.delete(f"{pods}/{FLEET}-0", gracePeriodSeconds=0)
    await workspace.applied("1", replicas=2, seconds=90)


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


@pytest.mark.usefixtures("shared_operator")
async def test_a_fixed_path_that_serves_the_files_of_an_earlier_version_is_reported(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2)
    await workspace.applied("1", replicas=2)
    await workspace.publish("2", source={"path": "/weights/step_2"})
    await workspace.applied("2", replicas=2)
    assert await workspace.condition("WeightsUnchanged") is None

    await workspace.publish("3")  # a patch of one field

    async def served() -> bool:
        ready = await workspace.condition("Ready") or {}
        return ready.get("status") == "True"

    await workspace.until(served, "version 3 serves")
    warning = await workspace.condition("WeightsUnchanged")
    assert warning is not None
    assert (warning["status"], warning["reason"]) == ("True", "SameFiles")
    assert "version 2 " in warning["message"]
    pins = (await workspace.fleet())["status"]["pinned"]
    assert [(p["version"], p.get("sameAs")) for p in pins[:2]] == [("3", "2"), ("2", None)]

    async def posted() -> bool:
        path = f"/api/v1/namespaces/{workspace.namespace}/events"
        events = (await workspace.admin.get(path) or {})["items"]
        return "WeightsUnchanged" in {e["reason"] for e in events}

    await workspace.until(posted, "the Event is posted")


@pytest.mark.usefixtures("shared_operator")
async def test_an_invalid_overlay_in_a_rollout_restarts_no_worker(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2)
    await workspace.applied("1", replicas=2)
    before = {n: p["metadata"]["uid"] for n, p in (await workspace.objects("pods")).items()}
    for worker in workspace.kubelet.workers:
        worker.slow_seconds = 1
    await workspace.publish("2")

    async def under_way() -> bool:
        return await workspace.phase() in {"Staging", "Pausing", "Loading"}

    await workspace.until(under_way, "the rollout is under way")

    async def replaced() -> bool:
        # An API server drops null from a merge patch: it must come in by a whole object.
        fleet = await workspace.fleet()
        fleet["spec"]["podOverlay"] = {"spec": {"tolerations": None}}
        try:
            await workspace.admin.replace(workspace.path("inferencefleets"), fleet)
        except ApiError as error:
            if error.status != HTTPStatus.CONFLICT:  # the operator has written the status
                raise
            return False
        return True

    await workspace.until(replaced, "the overlay is in the spec")

    stalled = await _stalled(workspace)
    assert stalled["reason"] == "InvalidSpec"
    assert "tolerations" in stalled["message"]
    assert "Reason: InvalidSpec Status: True Type: Stalled" in await _described(workspace)

    async def serve_the_new_one() -> bool:
        return workspace.serving == ["2", "2"]

    await workspace.until(serve_the_new_one, "the rollout is finished")
    after = {n: p["metadata"]["uid"] for n, p in (await workspace.objects("pods")).items()}
    assert after == before

    await workspace.change_fleet(podOverlay=None)
    await workspace.applied("2", replicas=2)


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
