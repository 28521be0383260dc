"""A leader renews, confirms and releases its Lease, and ends in time when it cannot."""

from __future__ import annotations

import asyncio
import copy
import itertools
import time

import pytest
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.leases import PATH, held_by_another, lease_of, seconds_of, stored
from tests.support.virtual_time import now

from fleet_operator.errors import Conflict, Retryable, Terminal
from fleet_operator.runtime import lease as lease_module
from fleet_operator.runtime.lease import (
    DEADLINE_SECONDS,
    DURATION_SECONDS,
    RETRY_SECONDS,
    Lease,
    boot_seconds,
)

pytestmark = pytest.mark.virtual_time

SLACK = 0.001


class TestHolding:
    async def leading(self, cluster: FakeCluster) -> tuple[Lease, FakeKube]:
        client = cluster.client()
        lease = lease_of(client)
        await lease.acquire()
        return lease, client

    async def test_a_leader_renews_and_keeps_its_term(self):
        cluster = FakeCluster()
        lease, _ = await self.leading(cluster)
        holding = asyncio.create_task(lease.keep_renewing())
        for _ in range(200):
            await asyncio.sleep(1)
            assert lease.is_leader
        assert lease.term == stored(cluster)["leaseTransitions"] == 1
        assert stored(cluster)["acquireTime"] <= stored(cluster)["renewTime"]
        holding.cancel()

    async def test_a_renewal_is_one_request(self):
        lease, client = await self.leading(FakeCluster())
        client.requests.clear()
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(4.5 * RETRY_SECONDS)
        assert client.requests == [("PUT", PATH)] * 5
        holding.cancel()

    async def test_a_lease_that_was_changed_is_read_and_renewed_in_the_same_attempt(self):
        cluster = FakeCluster()
        lease, client = await self.leading(cluster)
        changed = copy.deepcopy(cluster.objects[PATH])
        changed["metadata"]["labels"] = {"kept": "yes"}
        cluster.put(PATH, changed)
        client.requests.clear()
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(0.5 * RETRY_SECONDS)
        assert [verb for verb, _ in client.requests] == ["PUT", "GET", "PUT"]
        assert cluster.objects[PATH]["metadata"]["labels"] == {"kept": "yes"}
        assert (lease.is_leader, lease.term, stored(cluster)["holderIdentity"]) == (
            True,
            1,
            "me",
        )
        holding.cancel()

    @pytest.mark.parametrize(
        "fault",
        [
            pytest.param({"error": Retryable("503")}, id="the server refuses"),
            pytest.param({"error": Terminal("403")}, id="the right to renew is taken away"),
            pytest.param({"hangs": True}, id="requests hang"),
            pytest.param({"delay_seconds": 3.9}, id="requests take nearly as long as they may"),
            pytest.param({"error": Conflict("409")}, id="others keep writing"),
        ],
    )
    async def test_leading_ends_within_the_deadline_when(self, fault):
        """It no longer leads, and `keep_renewing` returns: its end is the end of the process."""

        lease, client = await self.leading(FakeCluster())
        renewed_at = now()
        for name, value in fault.items():
            setattr(client, name, value)
        if "delay_seconds" in fault:
            client.error = Retryable("503")
        ended_after = await seconds_of(lease.keep_renewing())

        assert ended_after <= DEADLINE_SECONDS + SLACK
        assert not lease.is_leader
        assert now() - renewed_at < DURATION_SECONDS, "no other process may lead before"

    async def test_renewals_keep_their_interval_while_the_server_is_away(self):
        """Reads come back one by one after an outage; a renewal does not wait for its turn."""

        lease, client = await self.leading(FakeCluster())
        tries: list[float] = []

        def away(_verb: str, _path: str) -> Retryable:
            tries.append(now())
            return Retryable("503", after_seconds=60)

        client.refuses = away
        await lease.keep_renewing()

        gaps = [round(b - a, 3) for a, b in itertools.pairwise(tries)]
        assert gaps == [RETRY_SECONDS] * len(gaps)
        assert len(tries) >= DEADLINE_SECONDS / RETRY_SECONDS

    async def test_lost_renewals_within_the_deadline_do_no_harm(self):
        lease, client = await self.leading(FakeCluster())
        holding = asyncio.create_task(lease.keep_renewing())
        client.error = Retryable("503")
        await asyncio.sleep(DEADLINE_SECONDS - 2 * RETRY_SECONDS)
        client.error = None
        await asyncio.sleep(60)
        assert lease.is_leader
        holding.cancel()

    async def test_leading_ends_at_once_when_another_holds_the_lease(self):
        cluster = FakeCluster()
        lease, _ = await self.leading(cluster)
        held_by_another(cluster)
        assert await seconds_of(lease.keep_renewing()) == 0
        assert not lease.is_leader
        assert stored(cluster)["holderIdentity"] == "other"

    async def test_the_deadline_of_the_leader_counts_from_when_the_renewal_was_sent(self):
        """A slow answer: the renewal took effect late, the own count began when it was sent."""

        lease, client = await self.leading(FakeCluster())
        client.delay_seconds = 1.5
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(3.5)
        client.hangs = True
        held_until = now()
        while lease.is_leader:
            held_until = now()
            await asyncio.sleep(0.1)
        assert held_until - virtual_time.START_SECONDS <= DEADLINE_SECONDS + 0.1
        holding.cancel()

    async def test_a_deleted_lease_is_created_again_with_the_same_term(self):
        cluster = FakeCluster()
        held_by_another(cluster, holderIdentity="")
        lease, _ = await self.leading(cluster)
        assert lease.term == 5
        holding = asyncio.create_task(lease.keep_renewing())
        cluster.drop(PATH)
        await asyncio.sleep(RETRY_SECONDS)
        assert stored(cluster)["leaseTransitions"] == lease.term == 5
        await asyncio.sleep(60)
        assert lease.is_leader
        holding.cancel()

    async def test_one_of_two_that_recreate_a_deleted_lease_leads(self):
        cluster = FakeCluster()
        lease, _ = await self.leading(cluster)
        cluster.drop(PATH)
        other = lease_of(cluster.client(), "other")
        await other.acquire()
        await lease.keep_renewing()
        assert (lease.is_leader, other.is_leader) == (False, True)

    async def test_a_deleted_lease_stays_with_its_holder(self):
        """`kubectl delete lease` under two healthy processes: at no moment do both lead."""

        cluster = FakeCluster()
        held_by_another(cluster, holderIdentity="")
        lease, client = await self.leading(cluster)
        standby = lease_of(cluster.client(), "standby")
        waiting = asyncio.create_task(standby.acquire())
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(30)
        cluster.drop(PATH)
        for _ in range(300):
            await asyncio.sleep(0.1)
            assert (lease.is_leader, standby.is_leader) == (True, False)
        assert stored(cluster)["holderIdentity"] == "me"
        client.hangs = True
        await asyncio.sleep(1)
        cluster.drop(PATH)
        while not standby.is_leader:
            await asyncio.sleep(0.1)
            assert not (lease.is_leader and standby.is_leader)
        assert standby.term == stored(cluster)["leaseTransitions"] == 6, "terms go on"
        await waiting
        holding.cancel()


class TestReleasing:
    async def test_a_standby_takes_over_at_its_next_look(self):
        cluster = FakeCluster()
        lease, standby = lease_of(cluster.client()), lease_of(cluster.client(), "standby")
        await lease.acquire()
        waiting = asyncio.create_task(standby.acquire())
        await asyncio.sleep(30)
        renewing = asyncio.create_task(lease.keep_renewing())
        renewing.cancel()
        await lease.release()
        assert not lease.is_leader
        assert await seconds_of(waiting) <= RETRY_SECONDS
        assert standby.term == 2

    async def test_a_lease_of_another_is_not_released(self):
        cluster = FakeCluster()
        lease = lease_of(cluster.client())
        await lease.acquire()
        held_by_another(cluster)
        await lease.release()
        assert stored(cluster)["holderIdentity"] == "other"

    async def test_a_process_that_does_not_lead_releases_nothing(self):
        client = FakeCluster().client()
        await lease_of(client).release()
        assert client.requests == []

    @pytest.mark.parametrize(
        "fault", [{"error": Retryable("503")}, {"hangs": True}], ids=["fails", "hangs"]
    )
    async def test_a_release_that_does_not_come_through_ends_all_the_same(self, fault):
        lease = lease_of(client := FakeCluster().client())
        await lease.acquire()
        for name, value in fault.items():
            setattr(client, name, value)
        assert await seconds_of(lease.release()) <= lease_module.REQUEST_SECONDS


class TestConfirming:
    """A worker has refused a call as old: the Lease, read after that, names the leader."""

    async def leading(self, cluster: FakeCluster) -> tuple[Lease, FakeKube, asyncio.Task[None]]:
        client = cluster.client()
        lease = lease_of(client)
        await lease.acquire()
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(0.1)
        return lease, client, holding

    async def test_a_confirmation_asks_the_api_server_at_once(self):
        lease, client, holding = await self.leading(FakeCluster())
        client.requests.clear()
        assert await seconds_of(lease.confirm()) == 0
        assert client.requests == [("PUT", PATH)]
        assert lease.is_leader
        holding.cancel()

    async def test_a_renewal_that_began_before_does_not_confirm(self):
        cluster = FakeCluster()
        lease, client, holding = await self.leading(cluster)
        client.delay_seconds = 1.0
        await asyncio.sleep(RETRY_SECONDS)  # a renewal is on its way
        # The rest of that renewal takes less than a request, one more renewal takes one.
        assert await seconds_of(lease.confirm()) > client.delay_seconds
        assert lease.is_leader
        holding.cancel()

    async def test_another_holder_ends_the_leadership_at_once(self):
        cluster = FakeCluster()
        lease, _, holding = await self.leading(cluster)
        held_by_another(cluster, leaseTransitions=1)
        assert await lease.confirm() is False
        assert not lease.is_leader
        assert await seconds_of(holding) == 0
        assert stored(cluster)["holderIdentity"] == "other"

    async def test_while_the_server_does_not_answer_nothing_is_confirmed_and_leading_ends(self):
        lease, client, holding = await self.leading(FakeCluster())
        client.error = Retryable("503")
        assert await lease.confirm() is False
        assert not lease.is_leader
        await holding
        assert len(client.requests) < 12, "it is not read again and again without a pause"

    async def test_the_lease_is_confirmed_once_the_server_answers_again(self):
        lease, client, holding = await self.leading(FakeCluster())
        client.error = Retryable("503")
        asking = asyncio.create_task(lease.confirm())
        await asyncio.sleep(RETRY_SECONDS)
        assert not asking.done()
        client.error = None
        assert await asking
        holding.cancel()

    async def test_a_process_that_does_not_lead_is_not_confirmed(self):
        assert await lease_of(FakeCluster().client()).confirm() is False


class TestSuspended:
    async def test_the_time_of_a_suspended_host_counts(self):
        """The event loop's clock stood still meanwhile, and every timer with it."""

        suspended_seconds = 0.0
        cluster = FakeCluster()
        lease = Lease(
            cluster.client(),
            namespace="system",
            name="operator",
            identity="me",
            clock=lambda: now() + suspended_seconds,
        )
        await lease.acquire()
        holding = asyncio.create_task(lease.keep_renewing())
        await asyncio.sleep(1)
        assert lease.is_leader
        suspended_seconds = 60.0
        assert not lease.is_leader
        assert await seconds_of(holding) <= RETRY_SECONDS
        assert stored(cluster)["holderIdentity"] == "me", "it was not renewed after waking up"

    def test_the_clock_counts_from_the_boot_of_the_host(self, monkeypatch):
        """The two clocks show the same on a host that was never suspended: their numbers differ."""
        monkeypatch.setattr(time, "clock_gettime", float)

        assert boot_seconds() == time.CLOCK_BOOTTIME
        assert time.CLOCK_BOOTTIME != time.CLOCK_MONOTONIC
