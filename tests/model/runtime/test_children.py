"""The runtime on virtual time: admin tokens, and pods that cannot be created."""

from __future__ import annotations

import asyncio
import base64

from tests.model.runtime.support import only
from tests.support.rig import FLEET_PATH, PODS_PATH, Rig

from fleet_operator.errors import Terminal

SECRET_PATH = "/api/v1/namespaces/rl/secrets/policy-admin-token"


class TestTokens:
    async def test_a_worker_with_another_token_makes_the_operator_read_the_secret_again(self):
        async with Rig() as rig:
            await rig.applied("1")
            secret = rig.cluster.objects[SECRET_PATH]
            secret["data"]["token"] = base64.b64encode(b"new").decode()
            rig.cluster.put(SECRET_PATH, secret)
            rig.workers.token = "new"
            rig.publish("2")
            await rig.applied("2", seconds=60)

    async def test_a_deleted_token_is_stored_again(self):
        async with Rig() as rig:
            await rig.applied("1")
            before = rig.cluster.objects[SECRET_PATH]["data"]
            rig.cluster.drop(SECRET_PATH)
            await rig.until(lambda: SECRET_PATH in rig.cluster.objects, seconds=400)
            assert rig.cluster.objects[SECRET_PATH]["data"] == before

    async def test_the_token_of_an_earlier_fleet_of_this_name_is_not_taken(self):
        """It is about to be collected, and with it the volume that every new pod waits for."""

        async with Rig() as rig:
            await rig.applied("1")
            (owner,) = rig.cluster.objects[SECRET_PATH]["metadata"]["ownerReferences"]
            fleet = rig.cluster.objects[FLEET_PATH]
            fleet["metadata"]["uid"] = "fleet-2"
            rig.cluster.put(FLEET_PATH, fleet)
            rig.tell_operator()
            await asyncio.sleep(10)
            assert owner["uid"] == "fleet-1"
            rig.cluster.drop(SECRET_PATH)
            await rig.until(lambda: SECRET_PATH in rig.cluster.objects)
            (owner,) = rig.cluster.objects[SECRET_PATH]["metadata"]["ownerReferences"]
            assert owner["uid"] == "fleet-2"

    async def test_a_token_that_was_there_before_any_fleet_is_used(self):
        rig = Rig()
        data = {"token": base64.b64encode(b"given").decode()}
        rig.cluster.put(SECRET_PATH, {"metadata": {"name": "policy-admin-token"}, "data": data})
        rig.workers.token = "given"
        async with rig:
            await rig.applied("1")


class TestPodsThatCannotBeCreated:
    QUOTA = Terminal('403 pods "policy-1" is forbidden: exceeded quota: gpus')

    async def test_stalled_names_the_quota_until_the_pods_are_created(self):
        async with Rig(replicas=1) as rig:
            await rig.applied("1")
            rig.kube.refuses = only("POST", "/pods", self.QUOTA)
            rig.change(FLEET_PATH, replicas=3)
            await rig.until(lambda: rig.condition("Stalled") is not None)
            stalled = rig.condition("Stalled")
            assert stalled["reason"] == "WorkersFailing"
            assert "exceeded quota" in stalled["message"]
            rig.kube.refuses = lambda _v, _p: None
            await rig.until(lambda: rig.serving == ["1", "1", "1"])
            await rig.until(lambda: rig.condition("Stalled") is None)

    async def test_rollouts_of_the_other_workers_continue_at_full_speed(self):
        async with Rig(replicas=2) as rig:
            await rig.applied("1")
            rig.kube.refuses = only("POST", "/pods", self.QUOTA)
            rig.change(FLEET_PATH, replicas=4)
            await rig.until(lambda: rig.condition("Stalled") is not None)
            rig.publish("2")
            assert await rig.until(lambda: rig.serving == ["2", "2"]) < 0.2

    async def test_many_pods_are_created_at_once(self):
        rig = Rig(replicas=300)
        async with rig:
            rig.kube.delay_seconds = 0.01
            await rig.until(lambda: len(rig.cluster.below(PODS_PATH)) == 300, seconds=1)
