"""The fleet's other objects follow the spec, whatever ran while the spec changed."""

from __future__ import annotations

import pytest
from tests.cluster.support.admin import ApiError, Json
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import FLEET, GROUP, Workspace

OPTIONS = {
    "type": "LoadBalancer",
    "loadBalancerSourceRanges": ["10.0.0.0/8"],
    "sessionAffinity": "ClientIP",
    "sessionAffinityTimeoutSeconds": 60,
    "labels": {"team": "rl"},
    "annotations": {"example.com/hostname": "policy.example.com"},
}
SERVICE = {"spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 8000}]}}
LABELS = {"matchLabels": {"app": "guarded"}}
BUDGET = {"spec": {"minAvailable": 1, "selector": LABELS}}
TEMPLATE = {
    "metadata": {"labels": LABELS["matchLabels"]},
    "spec": {"containers": [{"name": "idle", "image": "none"}]},
}
DEPLOYMENT = {"spec": {"replicas": 0, "selector": LABELS, "template": TEMPLATE}}
WEIGHTS = {"spec": {"fleetRef": {"name": "none"}, "version": "1", "source": {"path": "/weights/1"}}}
REMOVED = {"annotations": None, "labels": None, "loadBalancerSourceRanges": None}
CHILD_WRITES = 'rlfleet_api_writes_total{kind="child"}'


async def test_a_service_option_that_is_removed_without_an_operator_is_removed_by_the_next_one(
    workspace: Workspace,
) -> None:
    first = await workspace.start_operator()
    await workspace.make_fleet(
        replicas=1, serving={"adminPort": workspace.admin_port, "service": OPTIONS}
    )
    await workspace.applied("1", replicas=1)
    service = await _service(workspace)
    assert service["metadata"]["annotations"] == OPTIONS["annotations"]
    assert service["metadata"]["labels"].items() >= {"team": "rl"}.items()
    await workspace.kubectl("annotate", "service", FLEET, "example.com/added=by-another")
    await first.stop()

    second = await workspace.start_operator()
    await _has_looked(workspace, second)
    assert await second.metric(CHILD_WRITES) == 0, "what is as it was written is not written again"
    await second.stop()

    await workspace.change_fleet(serving={"service": REMOVED})
    third = await workspace.start_operator()

    async def is_removed() -> bool:
        metadata = (await _service(workspace))["metadata"]
        return metadata["annotations"] == {"example.com/added": "by-another"}

    await workspace.until(is_removed, "the annotation of the operator is gone, and no other one")
    service = await _service(workspace)
    assert "team" not in service["metadata"]["labels"]
    assert "loadBalancerSourceRanges" not in service["spec"]
    assert (service["spec"]["type"], service["spec"]["sessionAffinity"]) == (
        "LoadBalancer",
        "ClientIP",
    )

    async def is_counted() -> bool:
        return await third.metric(CHILD_WRITES) == 1

    await workspace.until(is_counted, "one write is counted, once its answer is there")


@pytest.mark.parametrize(
    ("root", "kind", "manifest"),
    [
        pytest.param("/api/v1", "Service", SERVICE),
        pytest.param("/api/v1", "ConfigMap", {"data": {"a": "1"}}),
        pytest.param("/apis/policy/v1", "PodDisruptionBudget", BUDGET),
        pytest.param("/apis/apps/v1", "Deployment", DEPLOYMENT),
        pytest.param(GROUP, "WeightVersion", WEIGHTS),
    ],
)
async def test_an_apply_that_names_no_real_version_creates_an_object_and_never_changes_one(
    workspace: Workspace, root: str, kind: str, manifest: Json
) -> None:
    """The first write of a child relies on it. A later apply can remove its fields, and an object that
    another client has created in the meantime stays as it is.
    """
    path = f"{root}/namespaces/{workspace.namespace}/{kind.lower()}s/guarded"
    metadata = {"name": "guarded", "annotations": {"example.com/a": "1"}}
    body = {"apiVersion": root.removeprefix("/apis/").removeprefix("/api/"), "kind": kind}
    body |= {"metadata": metadata | {"resourceVersion": "1"}, **manifest}

    made = await workspace.admin.apply(path, body, manager="first", force=True)
    assert made["metadata"]["resourceVersion"] != "1"
    with pytest.raises(ApiError) as refused:
        await workspace.admin.apply(path, body, manager="second", force=True)
    assert refused.value.status == 409
    assert (await workspace.admin.get(path) or {})["metadata"]["managedFields"][0][
        "manager"
    ] == "first"

    del body["metadata"]["resourceVersion"], body["metadata"]["annotations"]
    left = await workspace.admin.apply(path, body, manager="first", force=True)
    assert "example.com/a" not in left["metadata"].get("annotations", {}), "its own field is gone"


async def _service(workspace: Workspace) -> Json:
    return (await workspace.objects("services"))[FLEET]


async def _has_looked(workspace: Workspace, operator: OperatorProcess) -> None:
    """All is well, and this process has looked at the fleet since."""
    await workspace.applied("1", replicas=1)
    until = await operator.metric("rlfleet_reconcile_seconds_count") + 1
    looks = {"metadata": {"labels": {"looked-at-by": str(operator.probe_port)}}}
    await workspace.admin.merge(workspace.path("inferencefleets"), looks)

    async def has() -> bool:
        return await operator.metric("rlfleet_reconcile_seconds_count") >= until

    await workspace.until(has, "the operator looks again")
