"""The whole operator over a fake API server: upgrades replace no worker, and scale-down cuts nothing."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.rig import FLEET_PATH, PODS_PATH, Rig

from fleet_operator.errors import FleetError, Terminal
from rlfleet_resources import names

pytestmark = pytest.mark.virtual_time

OLD, NEW = "rlfleet/worker:1", "rlfleet/worker:2"


def pods(rig: Rig) -> dict[str, Any]:
    return {o["metadata"]["name"]: o for o in rig.cluster.below(PODS_PATH)}


def uids(rig: Rig) -> set[str]:
    return {p["metadata"]["uid"] for p in pods(rig).values()}


def images(rig: Rig) -> set[str]:
    return {p["spec"]["containers"][0]["image"] for p in pods(rig).values()}


def restarts(rig: Rig) -> set[str]:
    """Values of `restartedAt` that pods were made with."""
    metadata = (p["metadata"] for p in pods(rig).values())
    return {m.get("annotations", {}).get(names.ANNOTATION_RESTARTED_AT, "") for m in metadata}


async def test_another_release_replaces_no_worker_until_it_is_let():
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        before = uids(rig)
        await rig.kill_operator()
        rig.default_image = NEW
        await rig.start_operator()
        await rig.until(lambda: rig.condition("UpdateAvailable"))
        condition = rig.condition("UpdateAvailable")
        assert condition is not None
        assert condition["message"].startswith(f"image {OLD} -> {NEW}. ")

        rig.change(FLEET_PATH, replicas=3)
        await rig.until(lambda: rig.serving == ["1", "1", "1"])
        assert before < uids(rig)
        assert images(rig) == {OLD}

        rig.change(FLEET_PATH, update={"restartedAt": "2026-03-01T12:00:00Z"})
        await rig.until(lambda: images(rig) == {NEW} and rig.serving == ["1", "1", "1"])
        await rig.until(lambda: rig.condition("UpdateAvailable") is None)


async def test_an_earlier_restart_request_brings_no_old_template_back():
    async with Rig(replicas=1, update={"restartedAt": "x"}) as rig:
        await rig.applied("1")
        await rig.kill_operator()
        rig.default_image = NEW
        await rig.start_operator()
        rig.change(FLEET_PATH, update={"restartedAt": "y"})
        await rig.until(lambda: images(rig) == {NEW} and rig.serving == ["1"])
        rig.change(FLEET_PATH, update={"restartedAt": "x"})
        await rig.until(lambda: restarts(rig) == {"x"} and rig.serving == ["1"])
        assert images(rig) == {NEW}


def refuses_records(verb: str, path: str) -> FleetError | None:
    """The operator may not create ControllerRevisions."""
    if verb == "POST" and "/controllerrevisions" in path:
        return Terminal("403 controllerrevisions.apps is forbidden")
    return None


async def test_a_spec_that_goes_back_needs_no_record_that_was_refused():
    async with Rig(replicas=1) as rig:
        await rig.applied("1")
        rig.kube.refuses = refuses_records
        rig.change(FLEET_PATH, engine={"image": "other:1"})
        await rig.until(lambda: rig.condition("Stalled"))
        rig.change(FLEET_PATH, engine={}, replicas=2)
        await rig.until(lambda: rig.serving == ["1", "1"])
        await rig.until(lambda: rig.condition("Stalled") is None)

        assert images(rig) == {OLD}
