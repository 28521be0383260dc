"""One operator leads at a time: expiry by the own clock, deadlines, conflicts, and two candidates
under faults."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.virtual_time import VirtualTimeLoop, now

from fleet_operator.errors import Conflict, Retryable, Terminal, Unknown
from fleet_operator.runtime import clocks
from fleet_operator.runtime import lease as lease_module
from fleet_operator.runtime.lease import DEADLINE_SECONDS, DURATION_SECONDS, RETRY_SECONDS, Lease
from fleet_worker.protocol import MAX_TERM

PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator"
SLACK = 0.001


def lease_of(kube: FakeKube, identity: str = "me") -> Lease:
    return Lease(kube, namespace="system", name="operator", identity=identity, clock=now)


def stored(cluster: FakeCluster) -> dict[str, Any]:
    spec: dict[str, Any] = cluster.objects[PATH]["spec"]
    return spec


def held_by_another(cluster: FakeCluster, **spec: Any) -> None:
    given = {"holderIdentity": "other", "leaseDurationSeconds": 15, "leaseTransitions": 4}
    cluster.put(PATH, {"metadata": {"name": "operator"}, "spec": given | spec})


async def seconds_of(work: Any) -> float:
    started = now()
    await work
    return now() - started


class TestAcquiring:
    def test_the_first_candidate_makes_the_lease(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease = lease_of(cluster.client())
            assert not lease.held
            assert await seconds_of(lease.acquire()) == 0

            assert lease.held
            assert (lease.term, stored(cluster)["leaseTransitions"]) == (1, 1)
            assert stored(cluster)["holderIdentity"] == "me"
            assert stored(cluster)["leaseDurationSeconds"] == DURATION_SECONDS

        virtual_time.run(story())

    @pytest.mark.parametrize(
        "spec",
        [
            pytest.param({"holderIdentity": ""}, id="nobody holds it"),
            pytest.param({"holderIdentity": None}, id="it never had a holder"),
        ],
    )
    def test_a_lease_that_is_free_is_taken_at_once_with_the_next_term(self, spec):
        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, **spec)
            lease = lease_of(cluster.client())
            assert await seconds_of(lease.acquire()) == 0
            assert (lease.term, stored(cluster)["leaseTransitions"]) == (5, 5)

        virtual_time.run(story())

    def test_a_lease_without_any_fields_is_taken(self):
        async def story() -> None:
            cluster = FakeCluster()
            cluster.put(PATH, {"metadata": {"name": "operator"}, "spec": {}})
            lease = lease_of(cluster.client())
            await lease.acquire()
            assert lease.term == 1

        virtual_time.run(story())

    @pytest.mark.parametrize(
        "renewed",
        [
            pytest.param("2001-01-01T00:00:00.000000Z", id="years behind"),
            pytest.param("2101-01-01T00:00:00.000000Z", id="years ahead"),
        ],
    )
    def test_a_holders_clock_does_not_matter(self, renewed):
        """Expiry counts from when this process saw the renewal first."""

        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, renewTime=renewed)
            waited = await seconds_of(lease_of(cluster.client()).acquire())

            assert DURATION_SECONDS < waited <= DURATION_SECONDS + 2 * RETRY_SECONDS

        virtual_time.run(story())

    def test_a_holder_that_renews_is_left_alone_for_ever(self):
        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster)
            acquiring = asyncio.create_task(lease_of(cluster.client()).acquire())
            for _ in range(100):
                await asyncio.sleep(DURATION_SECONDS - 1)
                held_by_another(cluster)
            assert not acquiring.done()
            acquiring.cancel()

        virtual_time.run(story())

    def test_the_holders_own_duration_is_respected(self):
        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, leaseDurationSeconds=60)
            assert await seconds_of(lease_of(cluster.client()).acquire()) > 60

        virtual_time.run(story())

    def test_who_comes_second_waits(self):
        async def story() -> None:
            cluster = FakeCluster()
            clients = [cluster.client(), cluster.client()]
            for client in clients:
                client.delay_seconds = 0.5
            leases = [lease_of(c, f"candidate-{n}") for n, c in enumerate(clients)]
            racing = [asyncio.create_task(lease.acquire()) for lease in leases]
            await asyncio.sleep(5)
            assert [lease.held for lease in leases].count(True) == 1
            for task in racing:
                task.cancel()

        virtual_time.run(story())

    @pytest.mark.parametrize(
        "error",
        [
            pytest.param(Retryable("503"), id="the server is not there"),
            pytest.param(Unknown("no answer"), id="no answer comes"),
            pytest.param(Terminal("403"), id="it is not allowed"),
            pytest.param(Conflict("409"), id="somebody was faster"),
        ],
    )
    def test_a_candidate_goes_on_trying_when(self, error):
        async def story() -> None:
            client = FakeCluster().client()
            client.error = error
            lease = lease_of(client)
            acquiring = asyncio.create_task(lease.acquire())
            await asyncio.sleep(20)
            assert not lease.held
            client.error = None
            await asyncio.sleep(RETRY_SECONDS)
            assert lease.held
            await acquiring

        virtual_time.run(story())

    def test_a_request_that_hangs_does_not_count_as_leading(self):
        async def story() -> None:
            client = FakeCluster().client()
            client.hangs = True
            lease = lease_of(client)
            acquiring = asyncio.create_task(lease.acquire())
            await asyncio.sleep(30)
            assert not lease.held
            assert len(client.requests) > 3
            acquiring.cancel()

        virtual_time.run(story())

    def test_a_lease_that_it_took_without_hearing_the_answer_is_its_own_at_the_next_look(self):
        async def story() -> None:
            cluster = FakeCluster()
            client = cluster.client()
            client.answers_lost = True
            lease = lease_of(client)
            acquiring = asyncio.create_task(lease.acquire())
            await asyncio.sleep(0.1)
            client.answers_lost = False
            assert await seconds_of(acquiring) <= RETRY_SECONDS
            assert lease.term == stored(cluster)["leaseTransitions"] == 2

        virtual_time.run(story())


class TestHolding:
    async def leading(self, cluster: FakeCluster) -> tuple[Lease, FakeKube]:
        client = cluster.client()
        lease = lease_of(client)
        await lease.acquire()
        return lease, client

    def test_a_leader_renews_and_keeps_its_term(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, _ = await self.leading(cluster)
            holding = asyncio.create_task(lease.hold())
            for _ in range(200):
                await asyncio.sleep(1)
                assert lease.held
            assert lease.term == stored(cluster)["leaseTransitions"] == 1
            assert stored(cluster)["acquireTime"] <= stored(cluster)["renewTime"]
            holding.cancel()

        virtual_time.run(story())

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
    def test_leading_ends_within_the_deadline_when(self, fault):
        """Not held, and `hold` returns: its end is the end of the process."""

        async def story() -> None:
            lease, client = await self.leading(FakeCluster())
            renewed_at = now()
            for name, value in fault.items():
                setattr(client, name, value)
            if "delay_seconds" in fault:
                client.error = Retryable("503")
            ended_after = await seconds_of(lease.hold())

            assert ended_after <= DEADLINE_SECONDS + SLACK
            assert not lease.held
            assert now() - renewed_at < DURATION_SECONDS, "nobody else may lead before"

        virtual_time.run(story())

    def test_one_lost_renewal_is_no_loss(self):
        async def story() -> None:
            lease, client = await self.leading(FakeCluster())
            holding = asyncio.create_task(lease.hold())
            client.error = Retryable("503")
            await asyncio.sleep(DEADLINE_SECONDS - 2 * RETRY_SECONDS)
            client.error = None
            await asyncio.sleep(60)
            assert lease.held
            holding.cancel()

        virtual_time.run(story())

    def test_leading_ends_at_once_when_another_holds_the_lease(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, _ = await self.leading(cluster)
            held_by_another(cluster)
            assert await seconds_of(lease.hold()) == 0
            assert not lease.held
            assert stored(cluster)["holderIdentity"] == "other"

        virtual_time.run(story())

    def test_what_others_see_is_never_older_than_what_the_leader_counts_from(self):
        """A slow answer: the renewal took effect late, the own count began when it was sent."""

        async def story() -> None:
            lease, client = await self.leading(FakeCluster())
            client.delay_seconds = 1.5
            holding = asyncio.create_task(lease.hold())
            await asyncio.sleep(3.5)
            client.hangs = True
            held_until = now()
            while lease.held:
                held_until = now()
                await asyncio.sleep(0.1)
            assert held_until - virtual_time.START_SECONDS <= DEADLINE_SECONDS + 0.1
            holding.cancel()

        virtual_time.run(story())

    def test_a_lease_that_somebody_deletes_is_made_again_with_the_same_term(self):
        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, holderIdentity="")
            lease, _ = await self.leading(cluster)
            assert lease.term == 5
            holding = asyncio.create_task(lease.hold())
            cluster.drop(PATH)
            await asyncio.sleep(RETRY_SECONDS)
            assert stored(cluster)["leaseTransitions"] == lease.term == 5
            await asyncio.sleep(60)
            assert lease.held
            holding.cancel()

        virtual_time.run(story())

    def test_of_two_that_make_a_deleted_lease_anew_one_leads(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, _ = await self.leading(cluster)
            cluster.drop(PATH)
            other = lease_of(cluster.client(), "other")
            await other.acquire()
            await lease.hold()
            assert (lease.held, other.held) == (False, True)

        virtual_time.run(story())

    def test_a_lease_that_is_deleted_stays_with_its_holder_and_is_not_the_standbys(self):
        """`kubectl delete lease` under two healthy processes: at no moment do both lead."""

        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, holderIdentity="")
            lease, client = await self.leading(cluster)
            standby = lease_of(cluster.client(), "standby")
            waiting = asyncio.create_task(standby.acquire())
            holding = asyncio.create_task(lease.hold())
            await asyncio.sleep(30)
            cluster.drop(PATH)
            for _ in range(300):
                await asyncio.sleep(0.1)
                assert (lease.held, standby.held) == (True, False)
            assert stored(cluster)["holderIdentity"] == "me"
            client.hangs = True
            await asyncio.sleep(1)
            cluster.drop(PATH)
            while not standby.held:
                await asyncio.sleep(0.1)
                assert not (lease.held and standby.held)
            assert standby.term == stored(cluster)["leaseTransitions"] == 6, "terms go on"
            await waiting
            holding.cancel()

        virtual_time.run(story())


class TestReleasing:
    def test_a_standby_takes_over_at_its_next_look(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, standby = lease_of(cluster.client()), lease_of(cluster.client(), "standby")
            await lease.acquire()
            waiting = asyncio.create_task(standby.acquire())
            await asyncio.sleep(30)
            renewing = asyncio.create_task(lease.hold())
            renewing.cancel()
            await lease.release()
            assert not lease.held
            assert await seconds_of(waiting) <= RETRY_SECONDS
            assert standby.term == 2

        virtual_time.run(story())

    def test_a_lease_of_another_is_not_released(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease = lease_of(cluster.client())
            await lease.acquire()
            held_by_another(cluster)
            await lease.release()
            assert stored(cluster)["holderIdentity"] == "other"

        virtual_time.run(story())

    def test_who_does_not_lead_has_nothing_to_release(self):
        async def story() -> None:
            client = FakeCluster().client()
            await lease_of(client).release()
            assert client.requests == []

        virtual_time.run(story())

    @pytest.mark.parametrize(
        "fault", [{"error": Retryable("503")}, {"hangs": True}], ids=["fails", "hangs"]
    )
    def test_a_release_that_does_not_come_through_ends_all_the_same(self, fault):
        async def story() -> None:
            lease = lease_of(client := FakeCluster().client())
            await lease.acquire()
            for name, value in fault.items():
                setattr(client, name, value)
            assert await seconds_of(lease.release()) <= lease_module.REQUEST_SECONDS

        virtual_time.run(story())


class TestConfirming:
    """A worker has refused a call as old: the Lease, read after that, tells who leads."""

    async def leading(self, cluster: FakeCluster) -> tuple[Lease, FakeKube, asyncio.Task[None]]:
        client = cluster.client()
        lease = lease_of(client)
        await lease.acquire()
        holding = asyncio.create_task(lease.hold())
        await asyncio.sleep(0.1)
        return lease, client, holding

    def test_the_lease_is_read_at_once_and_not_at_the_next_renewal(self):
        async def story() -> None:
            lease, client, holding = await self.leading(FakeCluster())
            client.requests.clear()
            assert await seconds_of(lease.confirm()) == 0
            assert client.requests[0] == ("GET", PATH)
            assert lease.held
            holding.cancel()

        virtual_time.run(story())

    def test_a_reading_that_began_before_the_question_is_no_answer(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, client, holding = await self.leading(cluster)
            client.delay_seconds = 1.0
            await asyncio.sleep(RETRY_SECONDS)  # a renewal is on its way
            # The rest of that renewal takes less than two requests, one more renewal takes two.
            assert await seconds_of(lease.confirm()) > 2 * client.delay_seconds
            assert lease.held
            holding.cancel()

        virtual_time.run(story())

    def test_another_holder_ends_the_leadership_at_once(self):
        async def story() -> None:
            cluster = FakeCluster()
            lease, _, holding = await self.leading(cluster)
            held_by_another(cluster, leaseTransitions=1)
            assert await lease.confirm() is False
            assert not lease.held
            assert await seconds_of(holding) == 0
            assert stored(cluster)["holderIdentity"] == "other"

        virtual_time.run(story())

    def test_while_the_server_does_not_answer_nothing_is_confirmed_and_leading_ends(self):
        async def story() -> None:
            lease, client, holding = await self.leading(FakeCluster())
            client.error = Retryable("503")
            assert await lease.confirm() is False
            assert not lease.held
            await holding
            assert len(client.requests) < 12, "it is not read again and again without a pause"

        virtual_time.run(story())

    def test_it_is_confirmed_once_the_server_answers_again(self):
        async def story() -> None:
            lease, client, holding = await self.leading(FakeCluster())
            client.error = Retryable("503")
            asking = asyncio.create_task(lease.confirm())
            await asyncio.sleep(RETRY_SECONDS)
            assert not asking.done()
            client.error = None
            assert await asking
            holding.cancel()

        virtual_time.run(story())

    def test_a_process_that_does_not_lead_is_not_confirmed(self):
        async def story() -> None:
            assert await lease_of(FakeCluster().client()).confirm() is False

        virtual_time.run(story())


class TestSuspended:
    def test_time_in_which_the_host_was_suspended_counts(self):
        """The event loop's clock stood still meanwhile, and every timer with it."""

        async def story() -> None:
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
            holding = asyncio.create_task(lease.hold())
            await asyncio.sleep(1)
            assert lease.held
            suspended_seconds = 60.0
            assert not lease.held
            assert await seconds_of(holding) <= RETRY_SECONDS
            assert stored(cluster)["holderIdentity"] == "me", "it was not renewed after waking up"

        virtual_time.run(story())

    def test_the_clock_counts_from_the_boot_of_the_host(self, monkeypatch):
        """The two clocks show the same on a host that was never suspended: their numbers differ."""
        monkeypatch.setattr(clocks.time, "clock_gettime", float)

        assert clocks.boot_seconds() == time.CLOCK_BOOTTIME
        assert time.CLOCK_BOOTTIME != time.CLOCK_MONOTONIC


class TestTerms:
    @pytest.mark.parametrize("transitions", [MAX_TERM, 2**31 - 2, 2**31 - 1])
    def test_a_lease_that_counts_beyond_every_term_begins_again(self, transitions):
        """leaseTransitions is an int32: one more would be refused for ever."""

        async def story() -> None:
            cluster = FakeCluster()
            held_by_another(cluster, holderIdentity="", leaseTransitions=transitions)
            lease = lease_of(cluster.client())
            assert await seconds_of(lease.acquire()) == 0
            assert (lease.term, stored(cluster)["leaseTransitions"]) == (1, 1)

        virtual_time.run(story())


class TwoCandidates(RuleBasedStateMachine):
    """Processes come, hang, lose answers, die and stop; at no moment do two of them lead."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualTimeLoop()
        self.loop.run_until_complete(self._set_up())

    async def _set_up(self) -> None:
        self.cluster = FakeCluster()
        self.clients: list[FakeKube] = [self.cluster.client(), self.cluster.client()]
        self.leases: list[Lease] = []
        self.lives: list[asyncio.Task[None]] = []
        self.serial = 0
        self.terms: list[int] = []
        self.led: set[int] = set()
        for index in range(2):
            self.leases.append(self._candidate(index))
            self.lives.append(asyncio.create_task(self._live(self.leases[index])))

    def _candidate(self, index: int) -> Lease:
        self.serial += 1
        return lease_of(self.clients[index], f"process-{self.serial}")

    async def _live(self, lease: Lease) -> None:
        """A process: stands by, leads, ends."""
        await lease.acquire()
        assert not self.terms or lease.term > self.terms[-1], "a term was used twice"
        self.terms.append(lease.term)
        await lease.hold()

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.0, 7.0, 20.0)))
    def time_passes(self, seconds):
        async def watch() -> None:
            end = now() + seconds
            while now() < end:
                await asyncio.sleep(0.1)
                self.two_never_lead()

        self.loop.run_until_complete(watch())

    @rule(
        who=st.integers(0, 1),
        fault=st.sampled_from(
            ("none", "none", "refused", "hangs", "slow", "slower", "lost", "conflict")
        ),
    )
    def network(self, who, fault):
        client = self.clients[who]
        client.error = {"refused": Retryable("503"), "conflict": Conflict("409")}.get(fault)
        client.hangs = fault == "hangs"
        client.delay_seconds = {"slow": 1.7, "slower": 3.9}.get(fault, 0)
        client.answers_lost = fault == "lost"

    @rule(who=st.integers(0, 1))
    def killed_and_started_again(self, who):
        self.loop.run_until_complete(self._restart(who))

    @rule(who=st.integers(0, 1))
    def stopped_and_started_again(self, who):
        async def story() -> None:
            await self.leases[who].release()
            await self._restart(who)

        self.loop.run_until_complete(story())

    @precondition(lambda self: any(life.done() for life in self.lives))
    @rule()
    def those_that_ended_start_again(self):
        for who, life in enumerate(self.lives):
            if life.done():
                self.loop.run_until_complete(self._restart(who))

    async def _restart(self, who: int) -> None:
        life = self.lives[who]
        life.cancel()
        await asyncio.wait([life])
        if not life.cancelled() and life.exception() is not None:
            raise life.exception()  # type: ignore[misc]
        self.leases[who] = self._candidate(who)
        self.lives[who] = asyncio.create_task(self._live(self.leases[who]))

    @invariant()
    def two_never_lead(self):
        async def look() -> list[bool]:
            return [lease.held for lease in self.leases]

        if self.loop.is_running():
            held = [lease.held for lease in self.leases]
        else:
            held = self.loop.run_until_complete(look())
        assert held != [True, True]

    def teardown(self):
        async def settle() -> None:
            for who in (0, 1):
                self.network(who, "none")
                if self.lives[who].done():
                    await self._restart(who)
            await asyncio.sleep(2 * DURATION_SECONDS + 3 * RETRY_SECONDS)
            held = [lease.held for lease in self.leases]
            for life in self.lives:
                life.cancel()
            await asyncio.wait(self.lives)
            assert True in held, "with faults ended nobody leads"

        try:
            self.loop.run_until_complete(settle())
        finally:
            self.loop.close()


TwoCandidates.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTwoCandidates = TwoCandidates.TestCase
