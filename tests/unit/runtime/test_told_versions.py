"""The operator names the desired versions to the workers of a fleet with `spec.staleness`."""

from __future__ import annotations

from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support import virtual_time
from tests.support.rig import FLEET_PATH, LEASE_PATHS, FakeWorkers, Rig

from fleet_operator.core.actions import WorkerCall
from fleet_operator.errors import Terminal
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_operator.runtime import reconcile
from fleet_worker.protocol import Epoch, WantedRequest

pytestmark = pytest.mark.virtual_time

REFUSE = {"maxLagSeconds": 60, "action": "Refuse"}


class NotingWorkers(FakeWorkers):
    """`heard`: the last call to each worker, by its uid; `times`: of all calls."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[str, WantedRequest] = {}
        self.times: list[float] = []

    async def tell(self, worker: Addressee, wanted: WantedRequest) -> WorkerAnswer:
        self.heard[worker.pod_uid] = wanted
        self.times.append(virtual_time.now())
        return await super().tell(worker, wanted)


class Hearing(Rig):
    """A rig whose workers note the calls."""

    def __init__(self, *, workers: NotingWorkers | None = None, **spec: Any) -> None:
        super().__init__(**spec)
        self.workers = self.noting = workers or NotingWorkers()

    def limits(self) -> list[bool | None]:
        return [self.worker(n).limits_lag for n in range(3)]


async def test_every_worker_hears_the_desired_versions_and_serves_only_then():
    async with Hearing(version="1", staleness=REFUSE) as rig:
        await rig.applied("1")
        assert rig.limits() == [True] * 3
        rig.publish("2")
        await rig.applied("2")
        await rig.until(
            lambda: all(
                [w.version for w in heard.wanted][:2] == ["2", "1"]
                for heard in rig.noting.heard.values()
            )
        )


async def test_workers_at_rest_hear_at_least_three_times_in_the_permitted_time():
    async with Hearing(version="1", staleness=REFUSE) as rig:
        await rig.applied("1")
        began = virtual_time.now()
        await rig.until(lambda: virtual_time.now() - began > 100)
        times = [began, *(t for t in rig.noting.times if t > began)]

    assert max(b - a for a, b in pairwise(times)) <= 21


async def test_workers_hear_of_the_end_of_the_rule():
    async with Hearing(version="1", staleness=REFUSE) as rig:
        await rig.applied("1")
        del rig.cluster.objects[FLEET_PATH]["spec"]["staleness"]
        rig.change(FLEET_PATH)
        await rig.until(lambda: rig.limits() == [None] * 3)


async def test_a_fleet_without_the_rule_is_only_read():
    async with Hearing(version="1") as rig:
        await rig.applied("1")

        assert not rig.noting.heard


async def test_workers_hear_of_a_version_before_they_are_to_load_it():
    unheard: list[str] = []

    class Loading(NotingWorkers):
        async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
            heard = self.heard.get(worker.pod_uid, WantedRequest(term=0)).wanted
            if action.kind in {"load", "resume"} and action.version != heard[0].version:
                unheard.append(f"{action.work} on {action.pod_name}")
            return await super().call(worker, action, epoch)

    async with Hearing(workers=Loading(), staleness=REFUSE) as rig:
        await rig.applied("1")
        for version in "23456":
            rig.publish(version)
            await rig.applied(version)

    assert not unheard


def stale(rig: Hearing) -> str | None:
    """The reason of the fleet's condition `Stale`."""
    conditions = rig.cluster.objects[FLEET_PATH]["status"]["conditions"]
    return next((c["reason"] for c in conditions if c["type"] == "Stale"), None)


def test_workers_that_hear_nothing_after_a_defect_are_reported_until_it_has_passed(monkeypatch):
    async def story() -> None:
        async with Hearing(version="1", staleness=REFUSE) as rig:
            await rig.applied("1")
            with monkeypatch.context() as broken:
                broken.setattr(reconcile, "deciding", Mock(side_effect=KeyError("a defect")))
                rig.publish("2")
                await rig.until(lambda: stale(rig) == "DesiredUnheard")
            await rig.applied("2")
            await rig.until(lambda: stale(rig) is None)

    virtual_time.run(story())


def test_workers_that_may_not_be_called_are_reported():
    """A new operator reads the token first."""

    async def story() -> None:
        async with Hearing(version="1", staleness=REFUSE) as rig:
            await rig.applied("1")
            await rig.kill_operator()
            await rig.start_operator()
            refused = Terminal("403")
            rig.kube.refuses = lambda _, path: refused if "/secrets" in path else None
            await rig.until(lambda: stale(rig) == "DesiredUnheard", seconds=60)

    virtual_time.run(story())


def obeyed(rig: Hearing) -> set[int]:
    """The terms that the workers have heard last."""
    return {epoch.term for n in range(3) if (epoch := rig.worker(n).epoch) is not None}


async def test_workers_hear_again_after_the_lease_was_deleted_and_counts_from_one():
    async with Hearing(version="1", staleness=REFUSE) as rig:
        await rig.applied("1")
        await rig.restart_operator()
        await rig.until(lambda: obeyed(rig) == {2})
        await rig.kill_operator()
        del rig.cluster.objects[LEASE_PATHS[1]]
        await rig.start_operator()
        await rig.until(lambda: obeyed(rig) == {3}, seconds=20)
