"""The runtime on virtual time: writes that the API server accepts, and that another writer changes back.

They are repeated ever later, and reported.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.rig import FLEET_PATH, PODS_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.ports import Json
from fleet_operator.runtime.attempts import LASTS_SECONDS
from rlfleet_resources import names

SERVICE_PATH = "/api/v1/namespaces/rl/services/policy"
FOUGHT_SECONDS = 60.0
WRITES_PER_MINUTE = 16
REPORTED_SECONDS = 10.0


def pod_paths(rig: Rig) -> list[str]:
    return [p for p in rig.cluster.objects if p.startswith(f"{PODS_PATH}/")]


def writes_to(rig: Rig, path: str) -> int:
    return sum(p.startswith(path) for _, p in rig.writes)


def reason_of(rig: Rig) -> str:
    found = rig.condition("Stalled")
    return str(found["reason"]) if found else ""


def with_traffic(pod: Json, value: str) -> Json:
    """A pod whose label another controller has set."""
    metadata = pod["metadata"]
    return pod | {
        "metadata": metadata | {"labels": metadata["labels"] | {names.LABEL_TRAFFIC: value}}
    }


@asynccontextmanager
async def another_controller(change: Callable[[], None]) -> AsyncIterator[None]:
    """Another controller, which undoes what it sees at once."""

    async def watch() -> None:
        while True:
            change()
            await asyncio.sleep(0.02)

    task = asyncio.create_task(watch())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def allow_traffic(rig: Rig) -> None:
    """Let the Service select every pod."""
    for path in pod_paths(rig):
        pod = rig.cluster.objects[path]
        if pod["metadata"]["labels"][names.LABEL_TRAFFIC] != names.TRAFFIC_ALLOWED:
            rig.cluster.put(path, with_traffic(pod, names.TRAFFIC_ALLOWED))


async def test_a_drain_whose_label_another_controller_takes_away_is_repeated_ever_later_and_reported():
    async with Rig(replicas=3) as rig:
        await rig.applied("1")
        rig.worker(2).ignores = frozenset({"fence"})  # it stays for long
        rig.change(FLEET_PATH, replicas=2)
        rig.kube.requests.clear()
        async with another_controller(lambda: allow_traffic(rig)):
            await rig.until(
                lambda: reason_of(rig) == "WriteWithoutEffect", seconds=REPORTED_SECONDS
            )
            began = now()
            while now() < began + FOUGHT_SECONDS:
                assert "BeginDrain of Pod policy-2" in rig.condition("Stalled")["message"]
                await asyncio.sleep(0.5)
        assert writes_to(rig, PODS_PATH) <= 2 * WRITES_PER_MINUTE
        rig.worker(2).ignores = frozenset()
        await rig.until(lambda: len(pod_paths(rig)) == 2, seconds=20)
        await rig.until(lambda: not reason_of(rig), seconds=15)


async def test_a_pod_that_the_service_still_selects_is_not_quarantined():
    """The mark alone takes no client away."""

    async with Rig(replicas=3) as rig:
        await rig.applied("1")
        rig.worker(0).ignores = frozenset({"fence"})
        rig.worker(0).label = rig.worker(0).weights = "7"
        async with another_controller(lambda: allow_traffic(rig)):
            await rig.until(
                lambda: reason_of(rig) == "WriteWithoutEffect", seconds=REPORTED_SECONDS
            )
            assert "Quarantine" in rig.condition("Stalled")["message"]


@pytest.mark.parametrize("what", ["pods", "services"])
async def test_a_webhook_that_changes_a_write_is_reported_at_once(what):
    async with Rig(replicas=3) as rig:
        await rig.applied("1")

        def webhook(path: str, body: Json) -> Json:
            if what == "pods" and path.startswith(PODS_PATH):
                return with_traffic(body, names.TRAFFIC_ALLOWED)
            return body | {"spec": {}} if path == SERVICE_PATH else body

        rig.kube.webhook = webhook
        rig.kube.requests.clear()
        serving = {"port": 8123} if what == "services" else {}
        rig.change(FLEET_PATH, replicas=2, serving=serving)
        await rig.until(lambda: reason_of(rig) == "WriteWithoutEffect", seconds=3)
        await asyncio.sleep(FOUGHT_SECONDS)
        assert reason_of(rig) == "WriteWithoutEffect"
        assert rig.fleet["workers"]["serving"] == 3 if what == "pods" else 2
        assert writes_to(rig, f"/api/v1/namespaces/rl/{what}") <= 2 * WRITES_PER_MINUTE


async def test_a_late_event_does_not_end_the_report_of_a_service_that_is_changed_back():
    """The operator then reads the Service, and may find it as it has just written it."""

    async with Rig(replicas=1) as rig:
        await rig.applied("1")
        wanted = rig.cluster.objects[SERVICE_PATH]
        undone = wanted | {"spec": wanted["spec"] | {"selector": {}}}

        def see(found: Json) -> None:
            if rig.session.children.differs(SERVICE_PATH, found):
                rig.operator.queue.add(("rl", "policy"))

        def change() -> None:
            if rig.cluster.objects[SERVICE_PATH]["spec"]["selector"]:
                rig.cluster.put(SERVICE_PATH, undone)
                see(undone)

        async with another_controller(change):
            await rig.until(
                lambda: reason_of(rig) == "WriteWithoutEffect", seconds=REPORTED_SECONDS
            )
        await rig.until(lambda: rig.cluster.objects[SERVICE_PATH]["spec"]["selector"], seconds=10)
        written_at, seen = now(), set()
        while now() < written_at + LASTS_SECONDS - 1:
            see(undone)
            await asyncio.sleep(0.2)
            seen.add(reason_of(rig))
        assert seen == {"WriteWithoutEffect"}
        await rig.until(lambda: not reason_of(rig), seconds=20)


async def test_a_service_that_another_controller_changes_back_is_written_ever_later_and_reported():
    async with Rig(replicas=1) as rig:
        await rig.applied("1")

        def change() -> None:
            found = rig.cluster.objects[SERVICE_PATH]
            if "publishNotReadyAddresses" in found["spec"] or found["spec"].get("selector"):
                rig.cluster.put(SERVICE_PATH, found | {"spec": found["spec"] | {"selector": {}}})
                seen = rig.cluster.objects[SERVICE_PATH]
                if rig.session.children.differs(SERVICE_PATH, seen):  # as its watch does
                    rig.operator.queue.add(("rl", "policy"))

        rig.kube.requests.clear()
        async with another_controller(change):
            await rig.until(
                lambda: reason_of(rig) == "WriteWithoutEffect", seconds=REPORTED_SECONDS
            )
            assert "Service policy" in rig.condition("Stalled")["message"]
            await asyncio.sleep(FOUGHT_SECONDS)
        assert writes_to(rig, SERVICE_PATH) <= 2 * WRITES_PER_MINUTE
        await rig.until(lambda: not reason_of(rig), seconds=20)


async def test_a_pod_that_is_deleted_as_soon_as_it_is_created_is_created_ever_later_and_reported():
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        rig.kube.requests.clear()

        def delete() -> None:
            if f"{PODS_PATH}/policy-1" in rig.cluster.objects:
                rig.cluster.drop(f"{PODS_PATH}/policy-1")

        async with another_controller(delete):
            await rig.until(
                lambda: reason_of(rig) == "WriteWithoutEffect", seconds=REPORTED_SECONDS
            )
            assert "policy-1" in rig.condition("Stalled")["message"]
            await asyncio.sleep(FOUGHT_SECONDS)
        assert writes_to(rig, PODS_PATH) <= 2 * WRITES_PER_MINUTE
        await rig.until(lambda: rig.serving == ["1", "1"], seconds=20)


@pytest.mark.parametrize("path", [WEIGHTS_PATH, FLEET_PATH])
async def test_a_status_that_another_writer_changes_back_is_written_ever_later_and_reported(path):
    async with Rig(replicas=1) as rig:
        await rig.applied("1")
        await asyncio.sleep(5)
        rig.kube.requests.clear()

        def change() -> None:
            stored: dict[str, Any] = rig.cluster.objects[f"{path}/status"]
            if stored["status"].get("workers" if path == FLEET_PATH else "conditions"):
                status = stored["status"] | {"workers": {}, "rollout": {}}
                if path == WEIGHTS_PATH:
                    status |= {"conditions": []}
                written = rig.cluster.put(f"{path}/status", stored | {"status": status})
                rig.cluster.objects[path]["metadata"]["resourceVersion"] = written["metadata"][
                    "resourceVersion"
                ]
                rig.tell_operator()

        async with another_controller(change):
            await rig.until(lambda: reason_of(rig) == "WriteWithoutEffect", seconds=20)
            assert "status of " in rig.condition("Stalled")["message"]
            began = now()
            while now() < began + FOUGHT_SECONDS:
                assert reason_of(rig) == "WriteWithoutEffect"
                await asyncio.sleep(0.5)
        assert 5 < writes_to(rig, path) <= 2 * WRITES_PER_MINUTE
        await rig.until(lambda: not reason_of(rig), seconds=20)
