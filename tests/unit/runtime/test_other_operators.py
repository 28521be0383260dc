"""Another release that drives a fleet is left alone for as long as its heartbeat is renewed."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from tests.support.fake_kube import FakeCluster
from tests.support.rig import FLEET_PATH, WEIGHTS_PATH, Rig
from tests.support.sessions import make_sessions

from fleet_operator.errors import Retryable, Terminal
from fleet_operator.runtime import foreign_fleets
from fleet_operator.runtime.heartbeats import HEARTBEAT_SECONDS, LOOK_SECONDS, Heartbeats
from fleet_operator.runtime.other_operators import (
    POLL_SECONDS,
    TAKEOVER_SECONDS,
    UNKNOWN_SECONDS,
    OtherOperators,
)
from fleet_operator.runtime.problems import HEARTBEAT
from fleet_operator.runtime.session import Driver, FleetSession

pytestmark = pytest.mark.virtual_time

OWN, OTHER = "rl/operator", "ops/rlfleet"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/rlfleet.ops"
OWN_LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/operator.rl"
STATUS_PATH = f"{FLEET_PATH}/status"


def renew(cluster: FakeCluster) -> None:
    spec = {"holderIdentity": OTHER, "leaseDurationSeconds": 60}
    cluster.put(LEASE_PATH, {"metadata": {"name": "rlfleet.ops"}, "spec": spec})


async def keep_renewing(cluster: FakeCluster) -> None:
    while True:
        renew(cluster)
        await asyncio.sleep(HEARTBEAT_SECONDS)


@pytest.mark.parametrize(
    "recorded",
    ["", OWN, "no-lease", "a/b/c", "../secrets/x", "ops/../../secrets/token", "ops/"],
)
async def test_a_fleet_that_names_no_other_lease_is_ours_and_costs_no_request(recorded):
    client = FakeCluster().client()
    assert await OtherOperators(client, OWN).driver("rl", recorded) is None
    assert client.requests == []


async def test_the_holder_of_a_renewed_lease_keeps_its_fleets_and_the_lease_is_rarely_read():
    cluster = FakeCluster()
    client = cluster.client()
    rivals = OtherOperators(client, OWN)
    renewing = asyncio.create_task(keep_renewing(cluster))
    await asyncio.sleep(0.1)
    for _ in range(300):
        assert await rivals.driver("rl", OTHER) == Driver(OTHER)
        await asyncio.sleep(1)
    assert client.requests == [("GET", LEASE_PATH)] * int(300 / POLL_SECONDS)
    renewing.cancel()


@pytest.mark.parametrize("how", ["not renewed", "deleted"])
async def test_a_lease_that_ends_leaves_its_fleets_after_a_while(how):
    cluster = FakeCluster()
    rivals = OtherOperators(cluster.client(), OWN)
    renew(cluster)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER)
    if how == "deleted":
        cluster.drop(LEASE_PATH)
    await asyncio.sleep(TAKEOVER_SECONDS - 1)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER)
    await asyncio.sleep(TAKEOVER_SECONDS)
    assert await rivals.driver("rl", OTHER) is None
    renew(cluster)
    await asyncio.sleep(POLL_SECONDS)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER), "it has come back"


@pytest.mark.parametrize("how", ["not renewed", "deleted"])
async def test_a_deletion_neither_ends_the_claim_of_an_operator_nor_counts_as_a_renewal(how):
    cluster = FakeCluster()
    rivals = OtherOperators(cluster.client(), OWN)
    renew(cluster)
    leaves = []
    for second in range(int(2 * TAKEOVER_SECONDS)):
        if how == "deleted" and second == TAKEOVER_SECONDS / 2:
            cluster.drop(LEASE_PATH)
        leaves.append(await rivals.driver("rl", OTHER) == Driver(OTHER))
        await asyncio.sleep(1)
    assert TAKEOVER_SECONDS <= leaves.count(True) <= TAKEOVER_SECONDS + POLL_SECONDS
    assert leaves == sorted(leaves, reverse=True)


async def test_an_operator_whose_lease_is_deleted_and_made_again_keeps_its_fleets():
    cluster = FakeCluster()
    rivals = OtherOperators(cluster.client(), OWN)
    for _ in range(20):
        renew(cluster)
        for _ in range(int(HEARTBEAT_SECONDS)):
            assert await rivals.driver("rl", OTHER) == Driver(OTHER)
            await asyncio.sleep(1)
        cluster.drop(LEASE_PATH)
        for _ in range(int(HEARTBEAT_SECONDS)):
            assert await rivals.driver("rl", OTHER) == Driver(OTHER)
            await asyncio.sleep(1)


async def test_operators_that_no_status_names_any_more_are_forgotten():
    rivals = OtherOperators(FakeCluster().client(), OWN)
    for number in range(100):
        assert await rivals.driver("rl", f"ops/release-{number}") is not None
        await asyncio.sleep(TAKEOVER_SECONDS / 4)
    assert len(rivals._known) <= 6


async def test_an_operator_that_takes_a_fleet_before_its_first_heartbeat_is_not_judged_by_its_last_one():
    cluster = FakeCluster()
    rivals = OtherOperators(cluster.client(), OWN)
    renew(cluster)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER)
    await asyncio.sleep(TAKEOVER_SECONDS)
    assert await rivals.driver("rl", OTHER) is None
    await asyncio.sleep(3600)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER), (
        "a heartbeat comes within LOOK_SECONDS"
    )
    await asyncio.sleep(TAKEOVER_SECONDS)
    assert await rivals.driver("rl", OTHER) is None, "it has never come"


@pytest.mark.parametrize("error", [Terminal("403"), Retryable("503")], ids=str)
async def test_a_heartbeat_that_cannot_be_read_leaves_the_fleet_and_is_unknown_after_minutes(error):
    client = FakeCluster().client()
    client.error = error
    rivals = OtherOperators(client, OWN)
    for _ in range(int(UNKNOWN_SECONDS / POLL_SECONDS)):
        assert await rivals.driver("rl", OTHER) == Driver(OTHER)
        await asyncio.sleep(POLL_SECONDS)
    for _ in range(20):
        assert await rivals.driver("rl", OTHER) == Driver(OTHER, unknown=str(error))
        await asyncio.sleep(TAKEOVER_SECONDS)
    client.error = None
    renew(client.cluster)
    assert await rivals.driver("rl", OTHER) == Driver(OTHER), "it is known again"


def driven(namespace: str, name: str) -> FleetSession:
    """The session of a fleet that this operator drives."""
    return make_sessions().of((namespace, name), f"uid-{name}")


async def renew_due(beating: Heartbeats) -> None:
    for each in beating.due().items():
        await beating.renew(*each)


class TestHeartbeats:
    async def test_one_lease_in_each_namespace_of_fleets_is_renewed_in_less_than_a_quarter_of_the_takeover(
        self,
    ):
        cluster = FakeCluster()
        fleets = [driven(*key) for key in (("rl", "a"), ("rl", "b"), ("other", "c"))]
        client = cluster.client()
        beating = Heartbeats(client, OWN, fleets)
        task = asyncio.create_task(beating.run())
        rivals = OtherOperators(cluster.client(), OTHER)
        await asyncio.sleep(0.1)
        for _ in range(60):
            assert await rivals.driver("rl", OWN) == Driver(OWN)
            assert await rivals.driver("other", OWN) == Driver(OWN)
            await asyncio.sleep(POLL_SECONDS)
        renewals = [path for verb, path in client.requests if verb == "APPLY"]
        assert renewals.count(OWN_LEASE_PATH) == 60 * POLL_SECONDS / HEARTBEAT_SECONDS + 1
        assert renewals.count(OWN_LEASE_PATH) - 1 <= len(renewals) / 2, "they do not come together"
        assert cluster.objects[OWN_LEASE_PATH]["spec"]["holderIdentity"] == OWN
        assert 4 * HEARTBEAT_SECONDS <= TAKEOVER_SECONDS
        task.cancel()

    async def test_namespaces_whose_requests_take_long_delay_the_lease_of_no_other_one(
        self, monkeypatch
    ):
        cluster = FakeCluster()
        slow = [driven(f"slow-{n}", f"fleet-{n}") for n in range(8)]
        client = cluster.client()
        begin = client._begin

        async def late_elsewhere(verb: str, path: str) -> None:
            await asyncio.sleep(TAKEOVER_SECONDS if "/slow-" in path else 0)
            await begin(verb, path)

        monkeypatch.setattr(client, "_begin", late_elsewhere)
        task = asyncio.create_task(Heartbeats(client, OWN, [*slow, driven("rl", "a")]).run())
        rivals = OtherOperators(cluster.client(), OTHER)
        for _ in range(60):
            await asyncio.sleep(POLL_SECONDS)
            assert await rivals.driver("rl", OWN) == Driver(OWN)
        assert client.requests.count(("APPLY", OWN_LEASE_PATH)) >= 60 * POLL_SECONDS / (
            HEARTBEAT_SECONDS + LOOK_SECONDS
        )
        task.cancel()

    async def test_a_refused_renewal_is_a_problem_of_the_fleets_of_that_namespace_only(self):
        client = FakeCluster().client()
        client.refuses = lambda _, path: Terminal("403") if "/rl/" in path else None
        ours, other = driven("rl", "a"), driven("other", "c")
        beating = Heartbeats(client, OWN, [ours, other])
        await renew_due(beating)
        assert ours.problems.has(HEARTBEAT)
        (problem,) = ours.problems.all()
        assert (problem.reason, problem.leaves_ready) == ("WriteRefused", True)
        assert not other.problems.all()
        client.refuses = lambda *_: None
        await renew_due(beating)
        assert not ours.problems.all()


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

    async def test_the_release_that_drives_a_fleet_is_named_in_its_status(self):
        async with Rig() as rig:
            await rig.applied("1")
            assert rig.fleet["operator"] == OWN

    async def test_nothing_is_called_and_nothing_written_but_one_event(self):
        async with Rig() as rig:
            await rig.applied("1")
            renewing = await self.taken_over(rig)
            await rig.operator.sessions.events.flush()
            before = len(rig.writes)
            rig.workers.asked.clear()
            rig.publish("2")
            await asyncio.sleep(600)
            assert rig.workers.asked == []
            assert rig.writes[before:] == []
            events = [o for p, o in rig.cluster.objects.items() if "/events/" in p]
            (event,) = [e for e in events if e["reason"] == "DrivenByAnotherOperator"]
            assert event["type"] == "Warning"
            for word in (OTHER, OWN, "watchNamespaces", "Lease rlfleet.ops in rl"):
                assert word in event["message"]
            shown = rig.operator.metrics.render().decode()
            assert "rlfleet_fleets_of_other_operators 1.0" in shown
            assert 'rlfleet_fleet_replicas{fleet="policy"' not in shown
            renewing.cancel()

    async def test_after_a_defect_in_its_report_it_is_left_alone_too(self, monkeypatch):
        monkeypatch.setattr(foreign_fleets, "left_to", Mock(side_effect=KeyError("a defect")))

        async with Rig() as rig:
            await rig.applied("1")
            before = len(rig.writes)
            rig.workers.asked.clear()
            renewing = await self.taken_over(rig)
            await asyncio.sleep(60)
            assert rig.workers.asked == []
            assert rig.writes[before:] == []
            renewing.cancel()

    @pytest.mark.parametrize("resync_seconds", [30.0, 3600.0])
    async def test_a_fleet_is_taken_over_when_the_other_release_is_gone(self, resync_seconds):
        rig = Rig()
        rig.resync_seconds = resync_seconds
        async with rig:
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

    @pytest.mark.parametrize("lives", [False, True], ids=["gone", "alive"])
    async def test_a_fleet_whose_drivers_life_is_unknown_says_so_once_and_a_living_driver_takes_it_back(
        self, lives
    ):
        async with Rig(staleness={"maxLagSeconds": 60, "action": "Refuse"}) as rig:
            await rig.applied("1")
            renewing = await self.taken_over(rig)
            rig.kube.refuses = lambda _, path: Terminal("403") if path == LEASE_PATH else None
            rig.publish("2")
            before = len(rig.writes)
            await asyncio.sleep(UNKNOWN_SECONDS - 2 * POLL_SECONDS)
            assert rig.condition("Stalled") is None, "it may pass"
            await asyncio.sleep(4 * POLL_SECONDS + 30)
            rig.tell_operator()
            for of in (FLEET_PATH, WEIGHTS_PATH):
                stalled, ready = rig.condition("Stalled", of=of), rig.condition("Ready", of=of)
                assert (stalled["status"], stalled["reason"]) == (
                    "True",
                    "DrivenByAnotherOperator",
                )
                assert ready["status"] == "False"
            assert rig.weights["observedGeneration"] == 2
            assert rig.fleet["operator"] == OTHER
            assert rig.condition("Stale") is None, "the workers may hear the other one"
            message = rig.condition("Stalled")["message"]
            for word in (
                OTHER,
                OWN,
                "rlfleet.ops in rl",
                "403",
                "kubectl patch inferencefleet",
            ):
                assert word in message
            if lives:  # and writes its own status over it
                stored = rig.cluster.objects[f"{FLEET_PATH}/status"]
                status = stored["status"] | {"conditions": []}
                rig.cluster.put(f"{FLEET_PATH}/status", stored | {"status": status})
                rig.tell_operator()
            await asyncio.sleep(1200)
            statuses = [path for _, path in rig.writes[before:] if path.endswith("/status")]
            assert sorted(statuses) == [f"{FLEET_PATH}/status", f"{WEIGHTS_PATH}/status"]
            assert (rig.condition("Stalled") is None) == lives

            rig.publish("3")
            await rig.until(lambda: rig.weights["observedGeneration"] == 3, what="said of 3, too")
            rig.kube.refuses = lambda *_: None
            renewing.cancel()
            await rig.until(lambda: rig.fleet["operator"] == OWN, seconds=200)
            rig.tell_operator()
            await rig.applied("3")
            assert rig.condition("Stalled") is None
