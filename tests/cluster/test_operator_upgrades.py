"""A release of the operator with another default image replaces no worker before the user allows it."""

from __future__ import annotations

import pytest
from tests.cluster.support.admin import Json
from tests.cluster.support.workspace import FLEET, Workspace

OLD, NEW = "rlfleet/worker:old", "rlfleet/worker:new"
WITH_OLD, WITH_NEW = f"--default-image={OLD}", f"--default-image={NEW}"


@pytest.mark.long
async def test_a_new_default_image_waits_until_the_user_restarts_the_fleet(
    workspace: Workspace,
) -> None:
    first = await workspace.start_operator(WITH_OLD)
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.applied("1", replicas=1)
    before = _uids(await workspace.objects("pods"))
    await first.stop()

    await workspace.start_operator(WITH_NEW)
    said = await workspace.until(lambda: _update(workspace), "the other image is reported")
    assert (said["status"], said["reason"]) == ("True", "NewTemplate")
    assert said["message"].startswith(f"image {OLD} -> {NEW}. ")
    assert _uids(await workspace.objects("pods")) == before

    await workspace.change_fleet(replicas=2)
    await workspace.applied("1", replicas=2)
    pods = await workspace.objects("pods")
    assert _uids(pods).items() >= before.items()
    assert {_image(p) for p in pods.values()} == {OLD}

    await workspace.change_fleet(update={"restartedAt": "2026-03-01T12:00:00Z"})
    await workspace.until(
        lambda: _are_new(workspace), "all workers have the new image", seconds=120
    )
    await workspace.applied("1", replicas=2)
    assert not before.items() & _uids(await workspace.objects("pods")).items()
    assert await _update(workspace) is None


async def _update(workspace: Workspace) -> Json | None:
    return await workspace.condition("UpdateAvailable", of="inferencefleets")


async def _are_new(workspace: Workspace) -> bool:
    pods = (await workspace.objects("pods")).values()
    return len(pods) == 2 and {_image(p) for p in pods} == {NEW}


def _uids(pods: dict[str, Json]) -> dict[str, str]:
    assert all(name.startswith(f"{FLEET}-") for name in pods)
    return {name: p["metadata"]["uid"] for name, p in pods.items()}


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])
