"""A start that a real kubelet retries by itself is progress."""

from __future__ import annotations

import json

import pytest
from tests.support.kstatus import kstatus

import stack
from chaos.fleet import Fleet

pytestmark = pytest.mark.long
IMAGE = "rlfleet/late:1"
NAME = "late"
PULLS = {"ErrImagePull", "ImagePullBackOff"}
STARTS_SECONDS = 240
"""The kubelet doubles its wait from 10 s on; an engine on busy cores takes a minute."""


def test_an_image_that_comes_at_a_later_pull_is_progress_all_the_time(
    fleet: Fleet, request: pytest.FixtureRequest
) -> None:
    manifest = stack.fleet_manifest(NAME, replicas=1)
    manifest["spec"]["engine"] = manifest["spec"]["engine"] | {"image": IMAGE}
    request.addfinalizer(lambda: fleet.kubectl("delete", "ifl", NAME))
    fleet.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))

    def lags() -> str:
        found = fleet.get(f"ifl/{NAME}").get("status", {}).get("laggards", ())
        return "".join(one["reason"] for one in found)

    fleet.eventually(lambda: lags() in PULLS, "the first pull fails", seconds=120)
    condition = fleet.condition("Progressing", f"ifl/{NAME}")
    assert condition is not None
    assert (condition["status"], condition["reason"]) == ("True", "WaitingForImage")
    assert f"1 pod waits for an image. {NAME}-0: " in condition["message"]
    assert kstatus(fleet.get(f"ifl/{NAME}")) == "InProgress"

    stack.load_image(fleet.cluster, IMAGE, "worker", "fleet_worker")
    fleet.wait_ready(f"ifl/{NAME}", seconds=STARTS_SECONDS)

    chosen = f"--field-selector=involvedObject.name={NAME},type=Warning"
    warned = json.loads(fleet.kubectl("get", "events", chosen, "-o", "json").stdout)["items"]
    assert [e["reason"] for e in warned] == []
