"""Two candidates under faults: at no moment do both lead."""

from __future__ import annotations

import asyncio

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.leases import lease_of
from tests.support.virtual_time import VirtualTimeLoop, now

from fleet_operator.errors import Conflict, Retryable
from fleet_operator.runtime.lease import DURATION_SECONDS, RETRY_SECONDS, Lease


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
        """A process: waits, leads, ends."""
        await lease.acquire()
        assert not self.terms or lease.term > self.terms[-1], "a term was used twice"
        self.terms.append(lease.term)
        await lease.keep_renewing()

    @rule(seconds=st.sampled_from((0.1, 1.0, 3.0, 7.0, 20.0)))
    def time_passes(self, seconds):
        async def watch() -> None:
            end = now() + seconds
            while now() < end:
                await asyncio.sleep(0.1)
                self.two_never_lead()

        self.loop.run_until_complete(watch())

    @rule(
        index=st.integers(0, 1),
        fault=st.sampled_from(
            ("none", "none", "refused", "hangs", "slow", "slower", "lost", "conflict")
        ),
    )
    def network(self, index, fault):
        client = self.clients[index]
        client.error = {"refused": Retryable("503"), "conflict": Conflict("409")}.get(fault)
        client.hangs = fault == "hangs"
        client.delay_seconds = {"slow": 1.7, "slower": 3.9}.get(fault, 0)
        client.answers_lost = fault == "lost"

    @rule(index=st.integers(0, 1))
    def killed_and_started_again(self, index):
        self.loop.run_until_complete(self._restart(index))

    @rule(index=st.integers(0, 1))
    def stopped_and_started_again(self, index):
        async def story() -> None:
            await self.leases[index].release()
            await self._restart(index)

        self.loop.run_until_complete(story())

    @precondition(lambda self: any(life.done() for life in self.lives))
    @rule()
    def those_that_ended_start_again(self):
        for index, life in enumerate(self.lives):
            if life.done():
                self.loop.run_until_complete(self._restart(index))

    async def _restart(self, index: int) -> None:
        life = self.lives[index]
        life.cancel()
        await asyncio.wait([life])
        if not life.cancelled() and life.exception() is not None:
            raise life.exception()
        self.leases[index] = self._candidate(index)
        self.lives[index] = asyncio.create_task(self._live(self.leases[index]))

    @invariant()
    def two_never_lead(self):
        async def look() -> list[bool]:
            return [lease.is_leader for lease in self.leases]

        if self.loop.is_running():
            held = [lease.is_leader for lease in self.leases]
        else:
            held = self.loop.run_until_complete(look())
        assert held != [True, True]

    def teardown(self):
        async def settle() -> None:
            for index in (0, 1):
                self.network(index, "none")
                if self.lives[index].done():
                    await self._restart(index)
            await asyncio.sleep(2 * DURATION_SECONDS + 3 * RETRY_SECONDS)
            held = [lease.is_leader for lease in self.leases]
            for life in self.lives:
                life.cancel()
            await asyncio.wait(self.lives)
            assert True in held, "with faults ended no process leads"

        try:
            self.loop.run_until_complete(settle())
        finally:
            self.loop.close()


TwoCandidates.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestTwoCandidates = TwoCandidates.TestCase
