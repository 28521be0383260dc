"""One operator leads at a time: how a candidate takes the Lease."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_kube import FakeCluster
from tests.support.leases import PATH, held_by_another, lease_of, seconds_of, stored

from fleet_operator.errors import Conflict, Retryable, Terminal, Unknown
from fleet_operator.runtime.lease import DURATION_SECONDS, RETRY_SECONDS
from fleet_worker.protocol import MAX_TERM

pytestmark = pytest.mark.virtual_time


class TestAcquiring:
    async def test_the_first_candidate_makes_the_lease(self):
        cluster = FakeCluster()
        lease = lease_of(cluster.client())
        assert not lease.is_leader
        assert await seconds_of(lease.acquire()) == 0

        assert lease.is_leader
        assert (lease.term, stored(cluster)["leaseTransitions"]) == (1, 1)
        assert stored(cluster)["holderIdentity"] == "me"
        assert stored(cluster)["leaseDurationSeconds"] == DURATION_SECONDS

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param({"holderIdentity": ""}, id="it has no holder"),
            pytest.param({"holderIdentity": None}, id="it never had a holder"),
        ],
    )
    async def test_a_lease_that_is_free_is_taken_at_once_with_the_next_term(self, spec):
        cluster = FakeCluster()
        held_by_another(cluster, **spec)
        lease = lease_of(cluster.client())
        assert await seconds_of(lease.acquire()) == 0
        assert (lease.term, stored(cluster)["leaseTransitions"]) == (5, 5)

    async def test_a_lease_without_any_fields_is_taken(self):
        cluster = FakeCluster()
        cluster.put(PATH, {"metadata": {"name": "operator"}, "spec": {}})
        lease = lease_of(cluster.client())
        await lease.acquire()
        assert lease.term == 1

    @pytest.mark.parametrize(
        "renewed",
        [
            pytest.param("2001-01-01T00:00:00.000000Z", id="years behind"),
            pytest.param("2101-01-01T00:00:00.000000Z", id="years ahead"),
        ],
    )
    async def test_a_holders_clock_does_not_matter(self, renewed):
        """Expiry counts from when this process saw the renewal first."""

        cluster = FakeCluster()
        held_by_another(cluster, renewTime=renewed)
        waited = await seconds_of(lease_of(cluster.client()).acquire())

        assert DURATION_SECONDS < waited <= DURATION_SECONDS + 2 * RETRY_SECONDS

    async def test_a_holder_that_renews_keeps_the_lease(self):
        cluster = FakeCluster()
        held_by_another(cluster)
        acquiring = asyncio.create_task(lease_of(cluster.client()).acquire())
        for _ in range(100):
            await asyncio.sleep(DURATION_SECONDS - 1)
            held_by_another(cluster)
        assert not acquiring.done()
        acquiring.cancel()

    async def test_the_holders_own_duration_is_respected(self):
        cluster = FakeCluster()
        held_by_another(cluster, leaseDurationSeconds=60)
        assert await seconds_of(lease_of(cluster.client()).acquire()) > 60

    async def test_the_second_candidate_waits(self):
        cluster = FakeCluster()
        clients = [cluster.client(), cluster.client()]
        for client in clients:
            client.delay_seconds = 0.5
        leases = [lease_of(c, f"candidate-{n}") for n, c in enumerate(clients)]
        racing = [asyncio.create_task(lease.acquire()) for lease in leases]
        await asyncio.sleep(5)
        assert [lease.is_leader for lease in leases].count(True) == 1
        for task in racing:
            task.cancel()

    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(Retryable("503"), id="the server is not there"),
            pytest.param(Unknown("no answer"), id="no answer comes"),
            pytest.param(Terminal("403"), id="it is not allowed"),
            pytest.param(Conflict("409"), id="another candidate was faster"),
        ],
    )
    async def test_a_candidate_keeps_trying_when(self, error):
        client = FakeCluster().client()
        client.error = error
        lease = lease_of(client)
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.sleep(20)
        assert not lease.is_leader
        client.error = None
        await asyncio.sleep(RETRY_SECONDS)
        assert lease.is_leader
        await acquiring

    @pytest.mark.parametrize("releasing", [False, True], ids=["renewing", "releasing"])
    async def test_a_request_that_hangs_is_logged_as_a_timeout(self, caplog, releasing):
        client = FakeCluster().client()
        lease = lease_of(client)
        await lease.acquire()
        client.hangs = True
        await (lease.release() if releasing else lease.keep_renewing())

        warned = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
        assert warned
        assert all(message.endswith(": no answer in time") for message in warned)

    async def test_a_request_that_hangs_does_not_count_as_leading(self):
        client = FakeCluster().client()
        client.hangs = True
        lease = lease_of(client)
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.sleep(30)
        assert not lease.is_leader
        assert len(client.requests) > 3
        acquiring.cancel()

    async def test_a_lease_that_was_taken_without_an_answer_is_held_after_the_next_request(self):
        cluster = FakeCluster()
        client = cluster.client()
        client.answers_lost = True
        lease = lease_of(client)
        acquiring = asyncio.create_task(lease.acquire())
        await asyncio.sleep(0.1)
        client.answers_lost = False
        assert await seconds_of(acquiring) <= RETRY_SECONDS
        assert lease.term == stored(cluster)["leaseTransitions"] == 2


class TestTerms:
    @pytest.mark.parametrize("transitions", [MAX_TERM, 2**31 - 2, 2**31 - 1])
    async def test_terms_start_again_after_the_highest_one(self, transitions):
        """leaseTransitions is an int32: the API server would refuse a larger one every time."""

        cluster = FakeCluster()
        held_by_another(cluster, holderIdentity="", leaseTransitions=transitions)
        lease = lease_of(cluster.client())
        assert await seconds_of(lease.acquire()) == 0
        assert (lease.term, stored(cluster)["leaseTransitions"]) == (1, 1)
