"""The runtime on virtual time: statuses after conflicts, restarts and deletions."""

from __future__ import annotations

import asyncio

import pytest
from tests.model.runtime.support import only
from tests.support.rig import FLEET_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.errors import Conflict


class TestStatuses:
    @pytest.mark.parametrize(
        ("path", "served_meanwhile"),
        # The digest of a version is stored in the fleet's status before any worker loads it.
        [(FLEET_PATH, "1"), (WEIGHTS_PATH, "2")],
        ids=["fleet", "weights"],
    )
    async def test_a_status_is_written_again_after_a_conflict(self, path, served_meanwhile):
        async with Rig() as rig:
            await rig.applied("1")
            rig.kube.refuses = only("APPLY", f"{path}/status", Conflict("409"))
            rig.publish("2")
            await asyncio.sleep(3)
            assert rig.serving == [served_meanwhile] * 3
            rig.kube.refuses = lambda _v, _p: None
            await rig.applied("2", seconds=5)
            await rig.until(lambda: rig.fleet["appliedVersion"] == "2", seconds=5)

    async def test_a_weightversion_without_a_fleet_is_stalled_and_supersedes_nothing(self):
        async with Rig() as rig:
            await rig.applied("1")
            fleet = rig.cluster.objects[FLEET_PATH]
            rig.operator.store.remove_fleet(fleet)

            def progressing() -> tuple[str, str]:
                found = rig.condition("Progressing", of=WEIGHTS_PATH)
                return found["reason"], found["status"]

            # The fleet may come a moment later: objects of one manifest arrive in any order.
            await rig.until(lambda: progressing() == ("FleetNotFound", "True"))
            assert rig.condition("Stalled", of=WEIGHTS_PATH) is None
            await rig.until(lambda: rig.condition("Stalled", of=WEIGHTS_PATH) is not None)
            assert rig.condition("Stalled", of=WEIGHTS_PATH)["reason"] == "FleetNotFound"
            assert progressing() == ("FleetNotFound", "False")
            rig.operator.store.put_fleet(rig._with_status(FLEET_PATH))
            await rig.applied("1")
            assert rig.weights["supersededVersions"] == 0

    async def test_the_status_of_a_weightversion_without_a_fleet_is_written_in_time(self):
        async with Rig() as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.bad_sources.add("/weights/step_2")
            rig.publish("2")
            await rig.until(lambda: rig.condition("Stalled", of=WEIGHTS_PATH) is not None)
            rig.operator.store.remove_fleet(rig.cluster.objects[FLEET_PATH])
            await rig.until(
                lambda: rig.condition("Ready", of=WEIGHTS_PATH)["reason"] == "FleetNotFound",
                seconds=5,
            )

    async def test_a_deleted_fleet_leaves_nothing_in_memory(self):
        async with Rig() as rig:
            await rig.applied("1")
            rig.operator.store.remove_weights(rig.cluster.objects[WEIGHTS_PATH])
            rig.operator.store.remove_fleet(rig.cluster.objects[FLEET_PATH])
            await asyncio.sleep(5)
            assert len(rig.operator.sessions) == 0
            assert b'fleet="policy"' not in rig.operator.metrics.render()

    async def test_a_rollout_is_counted_once_when_its_workers_restart_later(self):
        async with Rig(replicas=1) as rig:
            await rig.applied("1")
            labels = 'fleet="policy",kind="base",namespace="rl"'
            shown = f"rlfleet_rollout_worker_pause_seconds_count{{{labels}}}"
            for _ in range(3):
                rig.worker(0).kill(now())
                await rig.until(lambda: rig.serving == [])
                await rig.until(lambda: rig.serving == ["1"])
                await asyncio.sleep(3)
            assert f"{shown} 1.0" in rig.operator.metrics.render().decode()
            assert len(rig.weights["history"]) == 1
            assert rig.weights["timings"]["totalSeconds"] < 30
