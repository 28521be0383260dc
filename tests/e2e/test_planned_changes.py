"""Planned changes of a fleet of real workers cut no request of its clients.

Clients generate through the Service all the time. One whose request is turned away tries again, as
clients of OpenAI's kind do; a reply that is cut short counts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.e2e.conftest import FLEET, WORKERS, Fleet

import stack

CUT = "a partial reply"


def uids(fleet: Fleet) -> dict[str, str]:
    return {name: p["metadata"]["uid"] for name, p in fleet.pods().items()}


def nothing_is_cut(fleet: Fleet, folder: Path, work: Callable[[], Any]) -> None:
    samples = fleet.while_sampling(folder / "replies.jsonl", work)

    assert samples.answered > 0
    assert samples.lost == []
    assert samples.reasons[CUT] == 0, dict(samples.reasons)


def test_scaling_from_three_workers_to_one_cuts_nothing(fleet: Fleet, tmp_path: Path) -> None:
    fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=3")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)

    def shrink() -> None:
        fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=1")
        fleet.eventually(lambda: len(uids(fleet)) == 1, "one worker is left", seconds=120)

    nothing_is_cut(fleet, tmp_path, shrink)
    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS}")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)


def test_a_change_of_the_template_cuts_nothing(fleet: Fleet, tmp_path: Path) -> None:
    before = set(uids(fleet).values())

    def change() -> None:
        patch = {"spec": {"podOverlay": {"metadata": {"annotations": {"example/drain": "1"}}}}}
        fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", json.dumps(patch))
        fleet.eventually(
            lambda: not before & set(uids(fleet).values()) and len(uids(fleet)) == WORKERS,
            "all workers are replaced",
            seconds=300,
        )
        fleet.wait_ready(f"ifl/{FLEET}", seconds=300)

    nothing_is_cut(fleet, tmp_path, change)


def test_a_drained_node_cuts_nothing(fleet: Fleet, tmp_path: Path) -> None:
    name, pod = next(iter(fleet.pods().items()))
    node, uid = pod["spec"]["nodeName"], pod["metadata"]["uid"]

    def drain() -> None:
        selector = f"--pod-selector=rlfleet.dev/fleet={FLEET}"
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--timeout=280s")
        try:
            fleet.cluster.kubectl("drain", node, selector, *flags)
        finally:
            fleet.cluster.kubectl("uncordon", node)
        assert uids(fleet).get(name) != uid
        fleet.wait_ready(f"ifl/{FLEET}", seconds=300)

    nothing_is_cut(fleet, tmp_path, drain)


def test_an_upgrade_with_another_worker_image_replaces_no_worker(
    fleet: Fleet, tmp_path: Path
) -> None:
    before = uids(fleet)

    def upgrade() -> None:
        stack.install(fleet.cluster, "worker.image=rlfleet/worker:another-release")
        fleet.eventually(
            lambda: fleet.condition("UpdateAvailable", f"ifl/{FLEET}"),
            "the other image is reported",
            seconds=60,
        )

    nothing_is_cut(fleet, tmp_path, upgrade)
    assert uids(fleet) == before
    said = fleet.condition("UpdateAvailable", f"ifl/{FLEET}")
    assert said is not None
    assert "rlfleet/worker:another-release" in said["message"]

    stack.install(fleet.cluster)
    fleet.eventually(
        lambda: fleet.condition("UpdateAvailable", f"ifl/{FLEET}") is None,
        "the image is the recorded one again",
        seconds=60,
    )
    assert uids(fleet) == before
