"""A release of the operator with another default image replaces no worker before the user allows it."""

from __future__ import annotations

from tests.cluster.support.admin import Json
from tests.cluster.support.stage import FLEET, Stage

OLD, NEW = "rlfleet/worker:old", "rlfleet/worker:new"
WITH_OLD, WITH_NEW = f"--default-image={OLD}", f"--default-image={NEW}"


async def test_a_new_default_image_waits_until_the_user_restarts_the_fleet(stage: Stage) -> None:
    first = await stage.start_operator(WITH_OLD)
    await stage.make_fleet(replicas=1, version="1")
    await stage.applied("1", replicas=1)
    before = _uids(await stage.objects("pods"))
    await first.stop()

    await stage.start_operator(WITH_NEW)
    said = await stage.until(lambda: _update(stage), "the other image is reported")
    assert (said["status"], said["reason"]) == ("True", "NewTemplate")
    assert said["message"].startswith(f"image {OLD} -> {NEW}. ")
    assert _uids(await stage.objects("pods")) == before

    await stage.change_fleet(replicas=2)
    await stage.applied("1", replicas=2)
    pods = await stage.objects("pods")
    assert _uids(pods).items() >= before.items()
    assert {_image(p) for p in pods.values()} == {OLD}

    await stage.change_fleet(update={"restartedAt": "2026-03-01T12:00:00Z"})
    await stage.until(lambda: _are_new(stage), "all workers have the new image", seconds=120)
    await stage.applied("1", replicas=2)
    assert not before.items() & _uids(await stage.objects("pods")).items()
    assert await _update(stage) is None


async def _update(stage: Stage) -> Json | None:
    return await stage.condition("UpdateAvailable", of="inferencefleets")


async def _are_new(stage: Stage) -> bool:
    pods = (await stage.objects("pods")).values()
    return len(pods) == 2 and {_image(p) for p in pods} == {NEW}


def _uids(pods: dict[str, Json]) -> dict[str, str]:
    assert all(name.startswith(f"{FLEET}-") for name in pods)
    return {name: p["metadata"]["uid"] for name, p in pods.items()}


def _image(pod: Json) -> str:
    return str(pod["spec"]["containers"][0]["image"])
