"""The whole operator: no more workers read a checkpoint at once than `rollout.maxStaging` says."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.support.rig import WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

pytestmark = pytest.mark.virtual_time

READ_SECONDS = 3.0


class Counting:
    """Counts in every moment how many workers read, and which."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.most = 0
        self.began: list[int] = []

    async def run(self) -> None:
        while True:
            reading = [w for w in self.rig.workers.workers.values() if w.staging is not None]
            self.most = max(self.most, len(reading))
            self.began += [w.ordinal for w in reading if w.ordinal not in self.began]
            await asyncio.sleep(0.01)


async def slow(rig: Rig) -> Counting:
    await rig.applied("1")
    for worker in rig.workers.workers.values():
        worker.slow_seconds = READ_SECONDS
    counting = Counting(rig)
    rig.counting = asyncio.create_task(counting.run())
    return counting


@pytest.mark.parametrize("strategy", ["Synchronized", "InFlight", "Rolling"])
async def test_workers_read_one_after_the_other_in_order_of_ordinal(strategy: str) -> None:
    async with Rig(replicas=6, rollout={"maxStaging": 2, "strategy": strategy}) as rig:
        counting = await slow(rig)
        rig.publish("2")
        await rig.applied("2", seconds=300)

        assert counting.most == 2
        assert counting.began == list(range(6))
        assert Counter(k for k, _ in rig.workers.asked)["stage 2"] == 6


async def test_a_place_that_is_free_is_taken_at_once() -> None:
    async with Rig(replicas=6, rollout={"maxStaging": "50%"}) as rig:
        await slow(rig)
        started = now()
        rig.publish("2")
        await rig.until(lambda: rig.phase in {"Pausing", "Loading"})

        assert now() - started < 2 * READ_SECONDS + 0.5


async def test_stages_that_an_earlier_leader_started_count() -> None:
    async with Rig(replicas=6, rollout={"maxStaging": 2}) as rig:
        counting = await slow(rig)
        rig.publish("2")
        await rig.until(lambda: len(counting.began) == 4)
        await rig.restart_operator()
        await rig.applied("2", seconds=300)

        assert counting.most == 2
        assert counting.began == list(range(6))


async def test_a_worker_whose_answers_are_lost_keeps_its_slot_until_it_answers_again() -> None:
    async with Rig(replicas=4, rollout={"maxStaging": 1}) as rig:
        counting = await slow(rig)
        rig.publish("2")
        await rig.until(lambda: counting.began == [0])
        rig.workers.silent = {0}
        await asyncio.sleep(READ_SECONDS - 1)
        assert counting.began == [0]
        await asyncio.sleep(READ_SECONDS)
        rig.workers.silent = set()
        await rig.applied("2", seconds=300)

        assert counting.most == 1


async def test_a_version_sets_a_bound_of_its_own() -> None:
    async with Rig(replicas=4, rollout={"maxStaging": 1}) as rig:
        counting = await slow(rig)
        rig.change(WEIGHTS_PATH, version="2", rollout={"maxStaging": 3})
        await rig.applied("2", seconds=300)

        assert counting.most == 3
