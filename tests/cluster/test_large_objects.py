"""The largest objects that etcd takes, of each followed kind, in the namespace of another tenant. They end no
process, fill no memory and slow no rollout.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.support.admin import Json
from tests.cluster.support.costs import OPERATOR_MIB, ROUNDS, Costs, Rollouts
from tests.cluster.support.flood import everything, flooded
from tests.cluster.support.workspace import GROUP, Workspace
from tests.support.selection import others_long

from fleet_operator.runtime.child_watch import FOLLOWED
from rlfleet_resources import names

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
    "weightversions": (
        GROUP,
        {
            "kind": "WeightVersion",
            "metadata": {"labels": MANY_LABELS},
            "spec": {"fleetRef": {"name": "none"}, "source": {"path": "/w"}, "version": "1"},
        },
    ),
}
READ = {"weightversions"}
"""Their large parts are not needed, so the operator reads them."""
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


def large(plural: str, name: str) -> dict[str, Any]:
    root, body = OBJECTS[plural]
    version = root.removeprefix("/apis/").removeprefix("/api/")
    labels = body.get("metadata", {}).get("labels", {}) | LABELS
    return {"apiVersion": version} | body | {"metadata": {"name": name, "labels": labels}}


def test_each_kind_that_the_operator_follows_has_a_largest_object() -> None:
    followed = {"pods", *(plural for _, plural in FOLLOWED)}
    custom = {names.WEIGHTS_PLURAL}  # fleets have their own test below

    assert OBJECTS.keys() == followed | custom


@pytest.mark.parametrize(
    "plural", others_long({"pods"}, [pytest.param(each, id=each) for each in OBJECTS])
)
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
    once = "however often it changes"
    assert reported.count(other) == (0 if plural in READ else 1), once
    assert operator.peak_mib() < OPERATOR_MIB / 2


def overlay(size_bytes: int) -> Json:
    """The parts of an overlay that cost most as Python objects."""
    return {"spec": {"volumes": [{"name": f"v{n:05}"} for n in range(size_bytes // 18)]}}


@pytest.mark.attack
@pytest.mark.long
@pytest.mark.parametrize("restarts", [False, True], ids=["in the watch", "in the list"])
@pytest.mark.parametrize(("number", "size_bytes"), [(30, 1_200_000), (60, 500_000)])
async def test_large_fleets_say_so_and_do_not_fill_the_memory(
    workspace: Workspace, number: int, size_bytes: int, *, restarts: bool
) -> None:
    """Ten fleets of 1.2 MB took 695 MB. The role `edit` suffices to create them."""
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    where = "a start with" if restarts else ""
    name = f"{where} {number} InferenceFleets of {size_bytes / 1e6:.1f} MB".strip()
    costs, rollout = Costs(attack=name), Rollouts(workspace)
    await costs.measure_alone(rollout)
    if restarts:
        await operator.stop()
    other = f"{workspace.namespace}-fleets"
    await workspace.make_namespace(other)
    root = f"{GROUP}/namespaces/{other}/inferencefleets"
    spec = (await workspace.fleet())["spec"] | {"replicas": 0, "podOverlay": overlay(size_bytes)}
    body = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "spec": spec}
    async with flooded(workspace, [root], body, number=number) as flood:
        if restarts:
            assert await flood.wait() == 0
            operator = await workspace.start_operator(again=True, direct=True)
        with costs.counting(workspace, operator=operator.pid):
            while flood.returncode is None:
                await costs.measure(rollout, 1)
            await costs.measure(rollout)

    async def all_say_so() -> bool:
        pages = [await workspace.admin.get(f"{root}/flood-{n}") for n in range(number)]
        reasons = [
            {c["reason"] for c in (page or {}).get("status", {}).get("conditions", ())}
            for page in pages
        ]
        return all("SpecTooLarge" in each for each in reasons)

    await workspace.until(all_say_so, "each of the large fleets is SpecTooLarge")

    costs.note(operator, workspace)
    if not restarts:  # a start has no flood
        await operator.stop()
        again = f"{other}-again"
        await workspace.make_namespace(again)
        root = f"{GROUP}/namespaces/{again}/inferencefleets"
        await costs.measure_server(workspace, [root], body, number=number)
    costs.check()
    assert costs.operator_mib is not None
    assert costs.operator_mib < OPERATOR_MIB / 2


@pytest.mark.parametrize("depth", [pytest.param(1200, marks=pytest.mark.long), 9900])
async def test_a_fleet_that_is_nested_too_deeply_ends_no_operator(
    workspace: Workspace, tmp_path: Path, depth: int
) -> None:
    """The API server takes about 10,000 levels, and Python parses 1,000."""
    operator = await workspace.start_operator(again=True)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    other = f"{workspace.namespace}-deep-{depth}"
    await workspace.make_namespace(other)
    deep = {"spec": {"volumes": [{"name": "x", "deep": "HERE"}]}}
    spec = (await workspace.fleet())["spec"] | {"replicas": 0, "podOverlay": deep}
    body = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "spec": spec}
    text = json.dumps(body | {"metadata": {"name": "deep"}})
    file = tmp_path / "deep.json"
    file.write_text(text.replace('"HERE"', '{"a":' * depth + "{}" + "}" * depth))
    path = f"{GROUP}/namespaces/{other}/inferencefleets"
    kubectl = workspace.cluster.kubectl
    await asyncio.to_thread(kubectl, "create", "--raw", path, "-f", str(file))
    await workspace.publish("2")
    await workspace.applied("2", replicas=2)
    await operator.stop()
    operator = await workspace.start_operator(again=True)
    await workspace.publish("3")
    await workspace.applied("3", replicas=2)

    assert [each.starts for each in workspace.operators] == [1, 1]
    await asyncio.to_thread(kubectl, "-n", other, "delete", "inferencefleet", "deep")


@pytest.mark.attack
@pytest.mark.long
@pytest.mark.parametrize("size_kb", [480, 60])
async def test_fleets_that_change_all_the_time_and_are_slow_to_parse_delay_no_other(
    workspace: Workspace, size_kb: int
) -> None:
    """Half a MiB of empty lists takes 130 ms of the event loop."""
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=3, version="1")
    await workspace.applied("1")
    name = f"8 fleets with {size_kb} KB of empty lists that change all the time"
    costs, rollout = Costs(attack=name), Rollouts(workspace)
    await costs.measure_alone(rollout)
    other = f"{workspace.namespace}-lists"
    await workspace.make_namespace(other)
    root = f"{GROUP}/namespaces/{other}/inferencefleets"
    lists: Json = {"spec": {"volumes": [[]] * (size_kb * 1000 // 3)}}
    spec = (await workspace.fleet())["spec"] | {"replicas": 0, "podOverlay": lists}
    body = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "spec": spec}
    await everything(workspace, [root], body, number=8)
    paths = [f"{root}/flood-{n}" for n in range(8)]
    async with flooded(workspace, paths, None, number=10**6):
        with costs.counting(workspace, operator=operator.pid):
            await costs.measure(rollout, 2 * ROUNDS)

    costs.note(operator, workspace)
    await operator.stop()
    await costs.measure_server(workspace, paths, None, number=10**6)
    costs.check()


@pytest.mark.attack
@pytest.mark.long
async def test_forty_large_pods_do_not_fill_the_memory_of_a_new_leader(
    workspace: Workspace,
) -> None:
    """A page of 500 objects had all of them: 737 MB. Each change of one ended the process."""
    operator = await workspace.start_operator(again=True, direct=True)
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    costs, rollout = Costs(attack="a start with 40 pods of 1.3 MB"), Rollouts(workspace)
    await costs.measure_alone(rollout)
    await operator.stop()
    other = f"{workspace.namespace}-many"
    await workspace.make_namespace(other)
    path = f"/api/v1/namespaces/{other}/pods"
    for n in range(40):
        await workspace.admin.create(path, large("pods", f"large-{n}"))
    operator = await workspace.start_operator(again=True, direct=True)
    for n in range(ROUNDS):
        change = {"metadata": {"labels": {"changes": str(n)}}}
        await workspace.admin.merge(f"{path}/large-{n}", change)
        await costs.measure(rollout, 1)

    costs.note(operator, workspace)
    costs.check()
    assert operator.peak_mib() < OPERATOR_MIB / 2
