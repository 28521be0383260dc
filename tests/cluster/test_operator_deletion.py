"""A deleted fleet: garbage collection with and without an operator, recreation, adoption of its workers.
A WeightVersion that is deleted in the middle of its rollout."""

from __future__ import annotations

from collections import Counter

import pytest
from tests.cluster.support.workspace import FLEET, Workspace

CHILDREN = (
    ("/api/v1", "pods"),
    ("/api/v1", "services"),
    ("/api/v1", "configmaps"),
    ("/api/v1", "secrets"),
    ("/apis/policy/v1", "poddisruptionbudgets"),
)
COLLECTED_SECONDS = 120
"""The garbage collector looks for new kinds each 30 s, and then waits up to 30 s for their objects. In a
fresh cluster ours is one.
"""


async def _children(workspace: Workspace) -> dict[str, dict]:
    found = {}
    for root, plural in CHILDREN:
        objects = await workspace.objects(plural, root=root)
        found |= {f"{plural}/{name}": made for name, made in objects.items()}
    return found


async def _fleet_uid(workspace: Workspace) -> str:
    return (await workspace.fleet())["metadata"]["uid"]


@pytest.mark.usefixtures("shared_operator")
async def test_every_object_of_a_fleet_is_owned_by_it_and_deleted_with_it(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    children = await _children(workspace)
    assert sorted(children) == [
        f"configmaps/{FLEET}-applied",
        f"poddisruptionbudgets/{FLEET}",
        f"pods/{FLEET}-0",
        f"pods/{FLEET}-1",
        f"secrets/{FLEET}-admin-token",
        f"services/{FLEET}",
        f"services/{FLEET}-workers",
    ]
    uid = await _fleet_uid(workspace)
    for child in children.values():
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("InferenceFleet", uid)
    for made in (await workspace.fleet(), await workspace.weights()):
        assert "finalizers" not in made["metadata"]  # deleting it needs no operator

    await workspace.kubectl("delete", f"ifl/{FLEET}", "--wait=false")

    async def gone() -> bool:
        return await _children(workspace) == {}

    await workspace.until(gone, "everything is collected", seconds=COLLECTED_SECONDS)


async def test_a_fleet_can_be_deleted_while_no_operator_runs(workspace: Workspace) -> None:
    operator = await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    assert await operator.stop() == 0
    assert workspace.serving == ["1", "1"]

    await workspace.kubectl("delete", f"ifl/{FLEET}", f"wv/{FLEET}")

    async def gone() -> bool:
        return await _children(workspace) == {}

    await workspace.until(gone, "everything is collected", seconds=COLLECTED_SECONDS)


@pytest.mark.usefixtures("shared_operator")
async def test_a_recreated_fleet_gets_new_workers_and_a_new_token(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    before = await _children(workspace)

    await workspace.kubectl("delete", f"ifl/{FLEET}", f"wv/{FLEET}", "--wait=false")
    await workspace.make_fleet(replicas=2, version="2")

    await workspace.applied("2", replicas=2, seconds=COLLECTED_SECONDS + 40)
    uid = await _fleet_uid(workspace)

    async def all_are_new() -> bool:
        children = await _children(workspace)
        owners = {c["metadata"]["ownerReferences"][0]["uid"] for c in children.values()}
        return owners == {uid} and children.keys() == before.keys()

    await workspace.until(all_are_new, "all belongs to the new fleet", seconds=COLLECTED_SECONDS)
    secret = f"secrets/{FLEET}-admin-token"
    assert (await _children(workspace))[secret]["data"] != before[secret]["data"]


def _kinds(workspace: Workspace) -> Counter[str]:
    """How many calls of each kind the workers got."""
    ports = workspace.kubelet.ports.values()
    return Counter(call.kind for port in ports for call in port.calls)


@pytest.mark.usefixtures("shared_operator")
async def test_orphaned_workers_are_adopted_and_keep_serving(
    workspace: Workspace,
) -> None:
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    uids = {name: c["metadata"]["uid"] for name, c in (await _children(workspace)).items()}
    before = _kinds(workspace)

    orphan = ("delete", f"ifl/{FLEET}", f"wv/{FLEET}", "--cascade=orphan")
    await workspace.kubectl(*orphan, f"--timeout={COLLECTED_SECONDS}s")
    assert workspace.serving == ["1", "1"]
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    uid = await _fleet_uid(workspace)

    async def adopted() -> bool:
        pods = (await workspace.objects("pods")).values()
        owners = [p["metadata"].get("ownerReferences", [{}])[0].get("uid") for p in pods]
        return owners == [uid, uid]

    await workspace.until(adopted, "the workers belong to the new fleet")
    assert {name: c["metadata"]["uid"] for name, c in (await _children(workspace)).items()} == uids
    # A worker compares the files that the new WeightVersion names. No worker loads anything.
    assert set(_kinds(workspace) - before) == {"stage"}
    assert workspace.serving == ["1", "1"]
