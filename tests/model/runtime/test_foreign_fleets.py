"""The runtime on virtual time: fleets of other tenants delay no pause and no rollout.

The promise: no lease lapses while a leader is alive, whatever number of fleets others create. Each mistake
in the queue that breaks it is found.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.rig import FLEET_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.runtime.fleet_queue import FLEETS_AT_ONCE, FleetQueue
from fleet_worker.protocol import Phase

FLEETS_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/{}/inferencefleets/{}"
REQUEST_SECONDS = 0.4
"""How long the API server takes. A new fleet needs several requests, one after the other."""
LOAD_SECONDS = 75.0
RENEWED_ABOVE_SECONDS = 17.0
"""A pause is renewed as soon as a reconcile sees less than 20 s left; alone that is within 2 s."""


def create_fleets(rig: Rig, number: int, *, namespaces: int = 1) -> None:
    """Others create fleets without workers, in namespaces of their own."""
    spec = rig.cluster.objects[FLEET_PATH]["spec"] | {"replicas": 0}
    for n in range(number):
        namespace, name = f"other-{n % namespaces}", f"fleet-{n}"
        metadata = {"name": name, "namespace": namespace, "uid": f"foreign-{n}", "generation": 1}
        body = {"kind": "InferenceFleet", "metadata": metadata, "spec": spec}
        path = FLEETS_PATH.format(namespace, name)
        rig.cluster.put(path, body)
        rig.operator.store.put_fleet(rig.cluster.objects[path])


def a_rig(namespaces: int = 1) -> Rig:
    rig = Rig(replicas=3)
    rig.namespaces = ("rl", *(f"other-{n}" for n in range(namespaces)))
    return rig


async def lowest_lease(fleets: int) -> float:
    """The least that is left of a lease while workers are paused for a long load."""
    async with a_rig() as rig:
        await rig.applied("1")
        rig.kube.delay_seconds = REQUEST_SECONDS
        for worker in rig.workers.workers.values():
            worker.slow_seconds = LOAD_SECONDS
        rig.publish("2")
        workers = rig.workers.workers
        await rig.until(
            lambda: all(w.phase is Phase.LOADING for w in workers.values()), seconds=300
        )
        create_fleets(rig, fleets)
        began, lowest = now(), 30.0
        while now() - began < LOAD_SECONDS - 5:
            await asyncio.sleep(0.5)
            left = [w.lease_until - now() for w in workers.values() if w.lease_until is not None]
            lowest = min([lowest, *left])
        return lowest


@pytest.mark.long  # fewer fleets delay none; tests/unit/runtime/test_workqueue.py holds turns and deadlines
async def test_no_lease_lapses_while_a_leader_is_alive() -> None:
    assert await lowest_lease(1500) > RENEWED_ABOVE_SECONDS


async def test_a_fleet_has_a_deadline_while_its_workers_are_paused() -> None:
    async with a_rig() as rig:
        await rig.applied("1")
        queue, workers = rig.operator.queue, rig.workers.workers
        assert queue._deadline(("rl", "policy"), now()) is None
        for worker in workers.values():
            worker.slow_seconds = LOAD_SECONDS
        rig.publish("2")
        await rig.until(lambda: all(w.phase is Phase.LOADING for w in workers.values()))
        first = min(w.lease_until for w in workers.values() if w.lease_until is not None)
        assert queue._deadline(("rl", "policy"), now()) == pytest.approx(first, abs=1)


async def test_a_rollout_takes_as_long_as_alone() -> None:
    async def seconds(fleets: int) -> float:
        async with a_rig() as rig:
            await rig.applied("1")
            rig.kube.delay_seconds = REQUEST_SECONDS
            create_fleets(rig, fleets)
            await asyncio.sleep(3)
            rig.publish("2")
            return await rig.applied("2")

    assert await seconds(400) <= 2 * await seconds(0)


async def test_fleets_whose_namespaces_wait_for_the_api_server_hold_no_place_among_the_reconciles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More of them than there are places, each in a namespace of its own."""

    async with a_rig(2 * FLEETS_AT_ONCE) as rig:
        await rig.applied("1")
        begin = rig.kube._begin

        async def slow_elsewhere(verb: str, path: str) -> None:
            if "/namespaces/other-" in path:
                await asyncio.sleep(10)
            await begin(verb, path)

        monkeypatch.setattr(rig.kube, "_begin", slow_elsewhere)
        create_fleets(rig, 2 * FLEETS_AT_ONCE, namespaces=2 * FLEETS_AT_ONCE)
        await asyncio.sleep(0)
        rig.publish("2")
        assert await rig.applied("2") < 1


def in_the_order_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue without turns of tenants and without deadlines."""
    init: Any = FleetQueue.__init__

    def broken(queue: FleetQueue, *given: Any) -> None:
        init(queue, *given)
        queue._deadline = lambda *_: None
        queue._tenant = lambda _: "all"

    monkeypatch.setattr(FleetQueue, "__init__", broken)


@pytest.mark.long
async def test_one_queue_in_the_order_of_time_lets_leases_lapse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_the_order_of_time(monkeypatch)
    assert await lowest_lease(1000) < 0
