"""The runtime on virtual time: the Lease and the terms that workers obey."""

from __future__ import annotations

import asyncio

import pytest
from tests.model.runtime.support import LEASE_PATH, lease_of
from tests.support.rig import FLEET_PATH, PODS_PATH, Rig
from tests.support.virtual_time import now

from fleet_worker.protocol import MAX_TERM, Epoch

TAKEOVER_SECONDS = 20.0


def reason_of(rig: Rig) -> str:
    """The reason of Stalled; empty without one."""
    stalled = rig.condition("Stalled")
    return stalled["reason"] if stalled else ""


class TestLeading:
    async def test_nothing_is_written_and_no_worker_is_driven_without_the_lease(self):
        async with Rig() as rig:
            await rig.applied("1")
            rig._tasks[0].cancel()  # renewals stop, as in a process that was frozen
            await rig.until(lambda: not rig.operator.lease.is_leader)
            before = len(rig.writes)
            rig.workers.asked.clear()
            rig.publish("2")
            rig.change(FLEET_PATH, replicas=5)
            await asyncio.sleep(30)
            assert rig.writes[before:] == []
            assert rig.workers.asked == []

    @pytest.mark.parametrize("phase", ["Staging", "Pausing", "Loading"])
    async def test_after_a_leader_is_killed_the_next_one_calls_the_workers_within_20_seconds(
        self, phase
    ):
        """The bound that docs/explanation/when-things-go-wrong.md promises.

        This standby starts with the kill. One that has watched the Lease waits for a shorter time.
        """

        async with Rig() as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.slow_seconds = 2.0 if phase != "Pausing" else 0.0
            rig.workers.latency_seconds = 1.6 if phase == "Pausing" else 0.005
            rig.publish("2")
            await rig.until(lambda: rig.phase == phase)
            killed_at = now()
            await rig.kill_operator()
            await rig.start_operator()
            await rig.until(
                lambda: any(w.epoch.term == 2 for w in rig.workers.workers.values()),
                what="a worker obeys the next leader",
            )
            assert now() - killed_at < TAKEOVER_SECONDS
            await rig.applied("2")

    async def test_a_worker_with_a_newer_term_gets_calls_above_it_and_the_lease_stays(self):
        async with Rig() as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.epoch = worker.epoch.model_copy(update={"term": 40})
            rig.publish("2")
            assert await rig.applied("2", seconds=20) < 3
            assert {w.epoch.term for w in rig.workers.workers.values()} == {41}
            assert rig.operator.lease.term == 1
            assert lease_of(rig)["leaseTransitions"] == 1

    async def test_a_lease_that_was_deleted_costs_one_refusal_and_one_reading(self):
        """The next leader begins at term 1 below workers that have obeyed 1000."""

        async with Rig() as rig:
            await rig.applied("1")
            for worker in rig.workers.workers.values():
                worker.epoch = worker.epoch.model_copy(update={"term": 1000})
            rig.cluster.drop(LEASE_PATH)
            await rig.restart_operator()
            rig.publish("2")
            assert await rig.applied("2", seconds=20) < 3
            refused = [r for r in rig.kube.requests if r == ("GET", LEASE_PATH)]
            assert len(refused) <= 4
            assert rig.session.epochs.last.term == 1001

    @pytest.mark.parametrize("term", [2**31 - 1, MAX_TERM + 1, MAX_TERM, MAX_TERM - 1])
    async def test_no_term_that_a_worker_reports_changes_the_lease_or_the_leader(self, term):
        """leaseTransitions is an int32, and one Lease is for all fleets."""

        async with Rig() as rig:
            await rig.applied("1")
            liar = rig.worker(0)
            liar.epoch = Epoch.model_construct(term=term, sequence=2**52)
            rig.publish("2")
            await asyncio.sleep(30)
            assert rig.operator.lease.is_leader
            assert lease_of(rig)["leaseTransitions"] == rig.operator.lease.term == 1
            assert rig.operator.sessions.of(("rl", "other")).epochs.last.term == 1

    async def test_a_worker_of_the_highest_term_is_reported_with_a_remedy_that_helps(self):
        async with Rig() as rig:
            await rig.applied("1")
            liar = rig.worker(0)
            liar.epoch = Epoch(term=MAX_TERM, sequence=9)
            rig.publish("2")
            await rig.until(lambda: reason_of(rig) == "EpochExhausted")
            message = rig.condition("Stalled")["message"]
            assert "policy-0" in message
            assert "policy-1" not in message
            assert "Delete these pods" in message
            for ip in [i for i, w in rig.workers.workers.items() if w is liar]:
                del rig.workers.workers[ip]
            rig.cluster.drop(f"{PODS_PATH}/policy-0")
            await rig.applied("2")
            await rig.until(lambda: rig.serving == ["2", "2", "2"])
            await rig.until(lambda: rig.condition("Stalled") is None)
            assert rig.session.epochs.last.term == 1
