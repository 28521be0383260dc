"""The runtime on virtual time: outages, and wall clocks that jump."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.rig import Rig, VirtualWallClock

SHORT = {"stageSeconds": 20, "pauseSeconds": 10, "loadSeconds": 10}


class TestTime:
    """Neither an outage nor a wall clock delays a worker."""

    @pytest.mark.parametrize("seconds", [35, 130, 1000])
    @pytest.mark.parametrize("phase", ["Staging", "Pausing", "Loading"])
    async def test_an_outage_of_the_operator_abandons_no_version(self, seconds, phase):
        async with Rig(rollout={"timeouts": SHORT}) as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.slow_seconds = 2.0 if phase != "Pausing" else 0.0
            rig.workers.latency_seconds = 1.6 if phase == "Pausing" else 0.005
            rig.publish("2")
            await rig.until(lambda: rig.phase == phase)
            await rig.kill_operator()
            await asyncio.sleep(seconds)
            await rig.start_operator()
            await rig.applied("2")
            assert [e["result"] for e in rig.weights["history"]] == ["Applied", "Applied"]
            assert rig.serving == ["2", "2", "2"]

    @pytest.mark.parametrize("seconds", [-3600, -90, 90, 3600])
    @pytest.mark.parametrize("restarts", [False, True], ids=["same leader", "next leader"])
    async def test_a_wall_clock_that_jumps_abandons_no_version(self, seconds, restarts):
        async with Rig(rollout={"timeouts": SHORT}) as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.slow_seconds = 3.0
            rig.publish("2")
            await rig.until(lambda: rig.phase == "Staging")
            if restarts:
                await rig.kill_operator()
            VirtualWallClock.ahead_seconds = seconds
            if restarts:
                await rig.start_operator()
            await rig.applied("2")
            history = rig.weights["history"]
            assert [e["result"] for e in history] == ["Applied", "Applied"]
            assert 0 <= history[0]["totalSeconds"] <= 60 + max(seconds, 0)
            timings = rig.weights["timings"]
            assert min(v for v in timings.values()) >= 0
            if not restarts:
                assert history[0]["totalSeconds"] < 60

    async def test_timeouts_count_on_the_clock_of_the_leader(self):
        """Timeouts hold as before, with the clock an hour behind."""

        async with Rig(rollout={"timeouts": SHORT}) as rig:
            await rig.applied("1")
            rig.workers.silent.add(0)
            rig.publish("2")
            await asyncio.sleep(5)
            VirtualWallClock.ahead_seconds = -3600
            took = await rig.until(lambda: rig.phase == "Halted")
            assert SHORT["stageSeconds"] - 6 <= took <= SHORT["stageSeconds"] + 2
