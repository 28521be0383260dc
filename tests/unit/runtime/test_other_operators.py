"""Another release that drives a fleet is left alone for as long as its Lease is renewed."""

from __future__ import annotations

import asyncio

import pytest
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster
from tests.support.rig import FLEET_PATH, Rig

from fleet_operator.errors import Retryable, Terminal
from fleet_operator.runtime.other_operators import POLL_SECONDS, TAKEOVER_SECONDS, OtherOperators

OWN, OTHER = "rl/operator", "ops/rlfleet"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/ops/leases/rlfleet"
STATUS_PATH = f"{FLEET_PATH}/status"


def renew(cluster: FakeCluster) -> None:
    spec = {"holderIdentity": "someone", "leaseDurationSeconds": 15}
    cluster.put(LEASE_PATH, {"metadata": {"name": "rlfleet"}, "spec": spec})


async def keep_renewing(cluster: FakeCluster) -> None:
    while True:
        renew(cluster)
        await asyncio.sleep(2)


@pytest.mark.parametrize(
    "recorded",
    ["", OWN, "no-lease", "a/b/c", "../secrets/x", "ops/../../secrets/token", "ops/"],
)
def test_a_fleet_that_names_no_other_lease_is_ours_and_costs_no_request(recorded):
    async def story() -> None:
        client = FakeCluster().client()
        assert await OtherOperators(client, OWN).driver(recorded) == ""
        assert client.requests == []

    virtual_time.run(story())


def test_the_holder_of_a_renewed_lease_keeps_its_fleets_and_the_lease_is_rarely_read():
    async def story() -> None:
        cluster = FakeCluster()
        client = cluster.client()
        rivals = OtherOperators(client, OWN)
        renewing = asyncio.create_task(keep_renewing(cluster))
        await asyncio.sleep(0.1)
        for _ in range(300):
            assert await rivals.driver(OTHER) == OTHER
            await asyncio.sleep(1)
        assert client.requests == [("GET", LEASE_PATH)] * int(300 / POLL_SECONDS)
        renewing.cancel()

    virtual_time.run(story())


@pytest.mark.parametrize("how", ["not renewed", "deleted"])
def test_a_lease_that_ends_leaves_its_fleets_after_a_while(how):
    async def story() -> None:
        cluster = FakeCluster()
        rivals = OtherOperators(cluster.client(), OWN)
        renew(cluster)
        assert await rivals.driver(OTHER) == OTHER
        if how == "deleted":
            cluster.drop(LEASE_PATH)
        await asyncio.sleep(TAKEOVER_SECONDS - 1)
        assert await rivals.driver(OTHER) == OTHER
        await asyncio.sleep(TAKEOVER_SECONDS + POLL_SECONDS)
        assert await rivals.driver(OTHER) == ""
        renew(cluster)
        await asyncio.sleep(POLL_SECONDS)
        assert await rivals.driver(OTHER) == OTHER, "it has come back"

    virtual_time.run(story())


@pytest.mark.parametrize("error", [Terminal("403"), Retryable("503")], ids=str)
def test_a_lease_that_cannot_be_read_is_taken_for_one_that_is_held(error):
    async def story() -> None:
        client = FakeCluster().client()
        client.error = error
        rivals = OtherOperators(client, OWN)
        for _ in range(20):
            assert await rivals.driver(OTHER) == OTHER
            await asyncio.sleep(TAKEOVER_SECONDS)

    virtual_time.run(story())


class TestAFleetOfAnotherRelease:
    async def taken_over(self, rig: Rig) -> asyncio.Task[None]:
        """The other release has come first: its mark is in the status."""
        renewing = asyncio.create_task(keep_renewing(rig.cluster))
        stored = rig.cluster.objects.get(STATUS_PATH, {"metadata": {}, "status": {}})
        status = stored["status"] | {"operator": OTHER}
        rig.cluster.put(STATUS_PATH, stored | {"status": status})
        rig.tell_operator()
        await asyncio.sleep(1)
        return renewing

    def test_the_release_that_drives_a_fleet_is_named_in_its_status(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                assert rig.fleet["operator"] == OWN

        virtual_time.run(story())

    def test_nothing_is_called_and_nothing_written_but_one_event(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                renewing = await self.taken_over(rig)
                await rig.operator.recorder.flush()
                before = len(rig.writes)
                rig.workers.asked.clear()
                rig.publish("2")
                await asyncio.sleep(600)
                assert rig.workers.asked == []
                assert rig.writes[before:] == []
                events = [o for p, o in rig.cluster.objects.items() if "/events/" in p]
                (event,) = [e for e in events if e["reason"] == "DrivenByAnotherOperator"]
                assert event["type"] == "Warning"
                for word in (OTHER, OWN, "watchNamespaces", "kubectl patch inferencefleet policy"):
                    assert word in event["message"]
                shown = rig.operator.metrics.render().decode()
                assert "rlfleet_fleets_of_other_operators 1.0" in shown
                assert 'rlfleet_fleet_replicas{fleet="policy"' not in shown
                renewing.cancel()

        virtual_time.run(story())

    def test_a_fleet_is_taken_over_when_the_other_release_is_gone(self):
        async def story() -> None:
            async with Rig() as rig:
                await rig.applied("1")
                renewing = await self.taken_over(rig)
                rig.publish("2")
                await asyncio.sleep(30)
                assert rig.serving == ["1", "1", "1"]
                renewing.cancel()
                took = await rig.until(lambda: rig.fleet.get("operator") == OWN, seconds=200)
                assert TAKEOVER_SECONDS - POLL_SECONDS < took < 2 * TAKEOVER_SECONDS
                rig.tell_operator()
                await rig.applied("2")
                shown = rig.operator.metrics.render().decode()
                assert "rlfleet_fleets_of_other_operators 0.0" in shown

        virtual_time.run(story())
