"""The largest objects that etcd takes, of each followed kind, in the namespace of another tenant: they end no
process, fill no memory and slow no rollout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import Workspace

ESCAPED = "<" * 1_300_000
"""1.3 MB in etcd, 7.8 MB as the API server's JSON."""
LABELS = {"app.kubernetes.io/managed-by": "rlfleet", "rlfleet.dev/fleet": "none"}
CONTAINER = {"name": "x", "image": "none", "args": [ESCAPED]}
OBJECTS: dict[str, tuple[str, dict[str, Any]]] = {
    "pods": (
        "/api/v1",
        {
            "kind": "Pod",
            "spec": {"schedulingGates": [{"name": "other/never"}], "containers": [CONTAINER]},
        },
    ),
    "deployments": (
        "/apis/apps/v1",
        {
            "kind": "Deployment",
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [CONTAINER]},
                },
            },
        },
    ),
    "services": (
        "/api/v1",
        {"kind": "Service", "spec": {"ports": [{"port": 80}], "clusterIP": "None"}},
    ),
    "poddisruptionbudgets": (
        "/apis/policy/v1",
        {"kind": "PodDisruptionBudget", "spec": {"maxUnavailable": 1}},
    ),
}
LIMIT_MIB = 512
"""Of the chart."""


def large(plural: str, name: str) -> dict[str, Any]:
    root, body = OBJECTS[plural]
    version = root.removeprefix("/apis/").removeprefix("/api/")
    metadata: dict[str, Any] = {"name": name, "labels": LABELS}
    if plural in {"services", "poddisruptionbudgets"}:  # annotations are what they have room in
        metadata["annotations"] = {"other/large": "<" * 250_000}
    return {"apiVersion": version} | body | {"metadata": metadata}


def peak_mib(operator: OperatorProcess) -> float:
    """The most memory that the process has had."""
    assert operator._process is not None
    lines = Path(f"/proc/{operator._process.pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


@pytest.mark.parametrize("plural", OBJECTS)
async def test_the_largest_object_of_a_kind_costs_another_tenant_nothing(
    workspace: Workspace, plural: str
) -> None:
    operator = await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    other = f"{workspace.namespace}-{plural}"
    await workspace.make_namespace(other)
    path = f"{OBJECTS[plural][0]}/namespaces/{other}/{plural}"
    await workspace.admin.create(path, large(plural, "large"))
    for n in range(5):  # each change is an event of the whole object
        labels = {"changes": str(n)}
        await workspace.admin.merge(f"{path}/large", {"metadata": {"labels": labels}})

    await workspace.publish("2")
    await workspace.applied("2", replicas=2, seconds=20)
    unread = [line for line in operator.lines() if line.get("event") == "object_unread"]

    assert operator.starts == 1
    reported = [line["namespace"] for line in unread]
    assert reported.count(other) == 1, "once, however often it changes"
    assert peak_mib(operator) < LIMIT_MIB / 2


@pytest.mark.long
async def test_forty_large_pods_do_not_fill_the_memory_of_a_new_leader(
    workspace: Workspace,
) -> None:
    """A page of 500 objects had all of them: 737 MB."""
    other = f"{workspace.namespace}-many"
    await workspace.make_namespace(other)
    path = f"/api/v1/namespaces/{other}/pods"
    for n in range(40):
        await workspace.admin.create(path, large("pods", f"large-{n}"))
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)

    assert peak_mib(operator) < LIMIT_MIB / 2
