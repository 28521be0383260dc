"""Planned changes of a fleet of real workers cut no stream of its clients.

Clients stream long generations through the Service. A change begins when each worker has some. A
request that is refused before any work is sent again. Every other failure of a stream is a cut
(tests/support/streaming.py).
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import FLEET, NAMESPACE, WORKERS, Fleet
from tests.support import releases
from tests.support.streaming import Streams, stream

import stack

pytestmark = pytest.mark.long
LONG_SECONDS = 5
RUNNING = "vllm:num_requests_running"


def uids(fleet: Fleet) -> dict[str, str]:
    return {name: p["metadata"]["uid"] for name, p in fleet.pods().items()}


def requests_running(fleet: Fleet, pod: str) -> float:
    path = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:8000/proxy/metrics"
    page = fleet.kubectl("get", "--raw", path).stdout
    return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if RUNNING + "{" in line)


def while_streaming(fleet: Fleet, work: Callable[[], Any]) -> Streams:
    """Do something to workers that all generate."""
    model = fleet.get(f"ifl/{FLEET}")["spec"]["model"]["name"]

    def change() -> None:
        fleet.eventually(
            lambda: all(requests_running(fleet, pod) for pod in fleet.pods()),
            "each worker generates",
            seconds=120,
        )
        work()

    async def both() -> Streams:
        streams, stop = Streams(), asyncio.Event()
        clients = asyncio.create_task(stream(fleet.url(), model, streams, stop))
        try:
            await asyncio.to_thread(change)
        finally:
            stop.set()
            await clients
        return streams

    return asyncio.run(both())


def nothing_is_cut(fleet: Fleet, work: Callable[[], Any]) -> None:
    streams = while_streaming(fleet, work)
    print(streams)  # noqa: T201 - the figures of the run

    assert streams.problems() == []
    assert streams.longest_seconds > LONG_SECONDS


def replaced(fleet: Fleet, before: dict[str, str]) -> None:
    """Wait until each worker is another one than before, and ready."""
    fleet.eventually(
        lambda: (
            not set(before.values()) & set(uids(fleet).values()) and len(uids(fleet)) == WORKERS
        ),
        "all workers are replaced",
        seconds=300,
    )
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)


def restart(fleet: Fleet, at: str) -> None:
    before = uids(fleet)
    patch = {"spec": {"update": {"restartedAt": at}}}
    fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", json.dumps(patch))
    replaced(fleet, before)


def test_scaling_from_three_workers_to_one_cuts_nothing(fleet: Fleet) -> None:
    fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=3")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)

    def shrink() -> None:
        fleet.kubectl("scale", f"ifl/{FLEET}", "--replicas=1")
        fleet.eventually(lambda: len(uids(fleet)) == 1, "one worker is left", seconds=300)

    nothing_is_cut(fleet, shrink)
    fleet.kubectl("scale", f"ifl/{FLEET}", f"--replicas={WORKERS}")
    fleet.wait_ready(f"ifl/{FLEET}", seconds=300)


def test_a_change_of_the_template_cuts_nothing(fleet: Fleet) -> None:
    def change() -> None:
        before = uids(fleet)
        patch = {"spec": {"podOverlay": {"metadata": {"annotations": {"example/drain": "1"}}}}}
        fleet.kubectl("patch", "ifl", FLEET, "--type=merge", "-p", json.dumps(patch))
        replaced(fleet, before)
        made = [p["metadata"]["annotations"]["example/drain"] for p in fleet.pods().values()]
        assert made == ["1"] * WORKERS

    nothing_is_cut(fleet, change)


def test_a_drained_node_cuts_nothing(fleet: Fleet) -> None:
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

    nothing_is_cut(fleet, drain)


def test_an_upgrade_replaces_workers_only_when_the_fleet_asks_for_it(
    fleet: Fleet, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The release that comes has another appVersion, other images, and makes pods differently."""
    chart = releases.prepare(fleet.cluster, tmp_path)
    # The tests that follow run on the operator of this tree, even if this one fails.
    request.addfinalizer(lambda: stack.install(fleet.cluster))
    before = uids(fleet)

    def upgrade() -> None:
        releases.upgrade(fleet.cluster, chart)
        fleet.eventually(
            lambda: fleet.condition("UpdateAvailable", f"ifl/{FLEET}"),
            "the other release is reported",
            seconds=120,
        )
        fleet.wait_ready(f"ifl/{FLEET}", seconds=60)

    nothing_is_cut(fleet, upgrade)
    assert uids(fleet) == before
    condition = fleet.condition("UpdateAvailable", f"ifl/{FLEET}")
    assert condition is not None
    assert condition["reason"] == "NewTemplate"
    assert f"image {stack.WORKER_IMAGE} -> {releases.WORKER_IMAGE}" in condition["message"]
    assert re.search(
        rf"template of operator \S+ -> {re.escape(releases.VERSION)}", condition["message"]
    )

    nothing_is_cut(fleet, lambda: restart(fleet, "2026-03-01T12:00:00Z"))
    assert {made_with(p) for p in fleet.pods().values()} == {
        (releases.WORKER_IMAGE, releases.START_LIMIT_SECONDS)
    }
    assert fleet.condition("UpdateAvailable", f"ifl/{FLEET}") is None

    back_to_this_release(fleet)


def made_with(pod: dict[str, Any]) -> tuple[str, int]:
    """The differences of both releases: the image, and the limit of the start."""
    worker = pod["spec"]["containers"][0]
    return worker["image"], worker["startupProbe"]["failureThreshold"]


def back_to_this_release(fleet: Fleet) -> None:
    """The tests that follow run on the workers of this tree."""
    before = uids(fleet)
    stack.install(fleet.cluster)
    fleet.eventually(
        lambda: fleet.condition("UpdateAvailable", f"ifl/{FLEET}"),
        "the way back is reported",
        seconds=120,
    )
    assert uids(fleet) == before
    restart(fleet, "2026-03-01T13:00:00Z")
    assert {image for image, _ in map(made_with, fleet.pods().values())} == {stack.WORKER_IMAGE}
