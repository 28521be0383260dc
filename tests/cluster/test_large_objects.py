"""The largest objects that etcd takes, of each followed kind, in the namespace of another tenant. They end no
process, fill no memory and slow no rollout.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.workspace import GROUP, Workspace

ESCAPED = "<" * 1_300_000
"""1.3 MB in etcd, 7.8 MB as the API server's JSON."""
LABELS = {"app.kubernetes.io/managed-by": "rlfleet", "rlfleet.dev/fleet": "none"}
CONTAINER = {"name": "x", "image": "none", "args": [ESCAPED]}
MANY_LABELS = {f"key-{n:05}": "v" * 60 for n in range(15_000)}
"""1.2 MB. Labels hold no character that becomes six."""
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
        {"kind": "Service", "spec": {"ports": [{"port": 80}], "selector": MANY_LABELS}},
    ),
    "poddisruptionbudgets": (
        "/apis/policy/v1",
        {
            "kind": "PodDisruptionBudget",
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": MANY_LABELS}},
        },
    ),
}
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
LIMIT_MIB = 512
"""Of the chart."""


def large(plural: str, name: str) -> dict[str, Any]:
    root, body = OBJECTS[plural]
    version = root.removeprefix("/apis/").removeprefix("/api/")
    return {"apiVersion": version} | body | {"metadata": {"name": name, "labels": LABELS}}


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


@pytest.mark.parametrize("restarts", [False, True], ids=["in the watch", "in the list"])
async def test_large_fleets_say_so_and_do_not_fill_the_memory(
    workspace: Workspace, *, restarts: bool
) -> None:
    """Ten fleets of 1.2 MB took 695 MB. The role `edit` suffices to create them."""
    operator = await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    if restarts:
        await operator.stop()
    other = f"{workspace.namespace}-fleets"
    await workspace.make_namespace(other)
    root = f"{GROUP}/namespaces/{other}/inferencefleets"
    spec = (await workspace.fleet())["spec"] | {"replicas": 0}
    spec["podOverlay"] = {"spec": {"volumes": [{"name": f"v{n}"} for n in range(60_000)]}}
    for n in range(10):
        body = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "spec": spec}
        await workspace.admin.create(root, body | {"metadata": {"name": f"large-{n}"}})
    if restarts:
        operator = await workspace.start_operator(again=True)
    await workspace.publish("2")
    await workspace.applied("2", replicas=2, seconds=20)

    async def all_say_so() -> bool:
        pages = [await workspace.admin.get(f"{root}/large-{n}") for n in range(10)]
        reasons = [
            {c["reason"] for c in (page or {}).get("status", {}).get("conditions", ())}
            for page in pages
        ]
        return all("SpecTooLarge" in each for each in reasons)

    await workspace.until(all_say_so, "each of the large fleets is SpecTooLarge")

    assert operator.starts == 1
    # kopf reads a list or an event whole, and releases it. Ten of these fleets take 260 MiB in the watch, and
    # 360 MiB in the list.
    assert peak_mib(operator) < LIMIT_MIB


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
