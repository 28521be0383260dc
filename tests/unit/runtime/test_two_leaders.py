"""Two processes that both take themselves for the leader: the old one ends, and never outbids.

Real are Lease, Calls, Epochs, the leader guard and the worker cache. The worker obeys epochs as the
agent does.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.support.builders import make_worker
from tests.support.fake_kube import FakeCluster
from tests.support.sessions import make_sessions
from tests.support.virtual_time import now

from fleet_operator.core import worker_calls as make_call
from fleet_operator.core.actions import WorkerCall
from fleet_operator.core.identity import WeightsId
from fleet_operator.ports import Addressee, WorkerAnswer
from fleet_operator.runtime.attempts import FIRST_SECONDS
from fleet_operator.runtime.dispatch import Caller, Dispatcher
from fleet_operator.runtime.epochs import raise_terms
from fleet_operator.runtime.lease import DURATION_SECONDS, RETRY_SECONDS, Lease
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.worker_cache import WorkerCache
from fleet_operator.time_shares import TimeShares
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.authority import newest
from fleet_worker.protocol import Epoch, WantedRequest

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator"
VIEW = make_worker(0).paused("41").view()


class FakeWorker:
    """One worker behind a fake wire. `log`: caller and term of each call, and whether it obeyed."""

    def __init__(self) -> None:
        self.epoch: Epoch | None = None
        self.log: list[tuple[str, int, bool]] = []

    async def state(self, worker: Addressee) -> WorkerAnswer:
        raise AssertionError("no test here reads a state")

    async def tell(self, worker: Addressee, _: WantedRequest) -> WorkerAnswer:
        return await self.state(worker)

    async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        state = make_worker(0).paused("41").state()
        assert state is not None
        try:
            self.epoch = newest(self.epoch, epoch)
        except Refusal as refusal:
            self.log.append((worker.token, epoch.term, False))
            state = state.model_copy(update={"epoch": self.epoch})
            return WorkerAnswer(state=state, reason=refusal.reason, message=refusal.message)
        self.log.append((worker.token, epoch.term, True))
        return WorkerAnswer(state=state.model_copy(update={"epoch": self.epoch}))


class Process:
    """The terms of one operator process. Its clock can stop, and be wrong about it."""

    def __init__(self, name: str, cluster: FakeCluster, worker: FakeWorker) -> None:
        self.name = name
        self.behind_seconds = 0.0
        self.lease = Lease(
            cluster.client(),
            namespace="system",
            name="operator",
            identity=name,
            clock=lambda: now() - self.behind_seconds,
        )
        self.sessions = make_sessions(cluster.client(), term=lambda: self.lease.term)
        self.session = self.sessions.of(KEY)
        self.calls = Dispatcher(
            worker,
            WorkerCache(),
            Metrics(),
            requeue=lambda _key, _seconds: None,
            shares=TimeShares(),
            leads=lambda: self.lease.is_leader,
        )
        self.tasks: list[asyncio.Task[None]] = []

    async def lead(self) -> None:
        await self.lease.acquire()
        self.wake_up()

    def wake_up(self) -> None:
        raising = raise_terms(
            self.sessions.refused,
            lambda: [self.session.epochs],
            self.lease.confirm,
            lambda _key, _seconds: None,
        )
        self.tasks = [asyncio.create_task(self.lease.keep_renewing()), asyncio.create_task(raising)]

    async def freeze(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.wait(self.tasks)

    async def resume(self, version: str) -> None:
        caller = Caller(
            session=self.session,
            token=self.name,
            admin_port=1,
            epoch=self.session.epochs.for_step({"": WeightsId(version)}, admits=False),
        )
        call = make_call.resume(make_worker().paused(version).view(), reason="")
        await self.calls.act(caller, [call], {VIEW.pod.uid: VIEW.pod})


async def end(*processes: Process) -> None:
    for process in processes:
        await process.freeze()


async def test_an_old_leader_whose_clock_stood_still_ends_at_its_first_refusal():
    """Its virtual machine was paused for a minute, on a system without CLOCK_BOOTTIME."""

    cluster, worker = FakeCluster(), FakeWorker()
    old, new = Process("old", cluster, worker), Process("new", cluster, worker)
    await old.lead()
    await old.resume("41")
    await old.freeze()
    frozen_at = now()
    await new.lead()
    await new.resume("42")
    old.behind_seconds = now() - frozen_at
    assert old.lease.is_leader, "to its own clock it has renewed a moment ago"
    old.wake_up()
    worker.log.clear()
    await old.resume("41")
    await asyncio.sleep(0.01)
    assert not old.lease.is_leader
    for _ in range(3):
        await asyncio.sleep(FIRST_SECONDS + 0.1)
        await old.resume("41")
        await new.resume("42")
    assert [e for e in worker.log if e[0] == "old"] in ([], [("old", 1, False)])
    assert all(obeyed for name, _, obeyed in worker.log if name == "new")
    assert new.lease.is_leader
    await end(old, new)


async def test_a_lease_that_is_deleted_under_two_healthy_processes_ends_with_one_leader():
    cluster, worker = FakeCluster(), FakeWorker()
    spec = {"holderIdentity": "", "leaseDurationSeconds": 1, "leaseTransitions": 4}
    cluster.put(PATH, {"metadata": {"name": "operator"}, "spec": spec})
    old, new = Process("old", cluster, worker), Process("new", cluster, worker)
    await old.lead()
    await old.resume("41")
    await asyncio.sleep(RETRY_SECONDS / 2)
    cluster.drop(PATH)
    await new.lead()
    assert (old.lease.term, new.lease.term) == (5, 1)
    while old.lease.is_leader:
        await new.resume("42")
        await asyncio.sleep(0.3)
        await old.resume("41")
        await asyncio.sleep(0.3)
    await asyncio.sleep(FIRST_SECONDS)
    await new.resume("42")
    assert new.lease.is_leader
    assert worker.epoch is not None
    assert worker.epoch.term == 6
    assert worker.log[-1] == ("new", 6, True)
    terms = [term for name, term, _ in worker.log if name == "old"]
    assert set(terms) == {5}, "the old one never raised its own"
    assert cluster.objects[PATH]["spec"]["leaseTransitions"] == 1
    await end(old, new)


async def test_a_suspended_process_calls_no_worker_when_it_wakes_up():
    """Also while no worker has heard of its successor, so that no epoch refuses it."""

    cluster, worker = FakeCluster(), FakeWorker()
    old = Process("old", cluster, worker)
    await old.lead()
    await old.freeze()
    await asyncio.sleep(2 * DURATION_SECONDS)
    old.wake_up()
    await old.resume("41")
    assert worker.log == []
    await end(old)
