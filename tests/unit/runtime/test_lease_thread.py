"""The Lease is renewed by a thread of its own, whatever the operator's loop does."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.threads import threads_named
from tests.support.waiting import eventually

from fleet_operator.errors import Terminal
from fleet_operator.runtime import lease as lease_module
from fleet_operator.runtime.lease_thread import LeaseThread

PATH = "/apis/coordination.k8s.io/v1/namespaces/system/leases/operator"


class FakeClient(FakeKube):
    """A client that knows in which thread it is used."""

    def __init__(self, cluster: FakeCluster) -> None:
        super().__init__(cluster)
        self.threads: set[str] = set()
        self.closed = 0

    async def _begin(self, verb: str, path: str) -> None:
        self.threads.add(threading.current_thread().name)
        await super()._begin(verb, path)

    async def close(self) -> None:
        self.closed += 1


async def started(client: FakeClient) -> LeaseThread:
    async def connect() -> FakeClient:
        return client

    return await LeaseThread.start(connect, namespace="system", name="operator", identity="me")


async def test_the_thread_leads_renews_and_releases(monkeypatch):
    before = threads_named("lease")
    monkeypatch.setattr(lease_module, "RETRY_SECONDS", 0.01)
    client = FakeClient(cluster := FakeCluster())
    lease = await started(client)
    await lease.acquire()
    assert (lease.is_leader, lease.term) == (True, 1)
    holding = asyncio.create_task(lease.keep_renewing())
    assert await lease.confirm() is True
    holding.cancel()
    await asyncio.wait([holding])
    await lease.release()
    assert not lease.is_leader
    assert cluster.objects[PATH]["spec"]["holderIdentity"] == ""
    await lease.stop()

    assert client.threads == {"lease"}
    assert client.closed == 1
    eventually(lambda: threads_named("lease") <= before)


async def test_a_loop_that_is_busy_does_not_lose_the_lease(monkeypatch):
    monkeypatch.setattr(lease_module, "RETRY_SECONDS", 0.05)
    client = FakeClient(cluster := FakeCluster())
    lease = await started(client)
    await lease.acquire()
    holding = asyncio.create_task(lease.keep_renewing())
    await asyncio.sleep(0)
    renewed, limit = set(), time.monotonic() + 60
    while len(renewed) < 20 and time.monotonic() < limit:  # answers of thousands of workers, say
        renewed.add(cluster.objects[PATH]["spec"]["renewTime"])
    assert len(renewed) == 20
    assert lease.is_leader
    assert not holding.done()
    holding.cancel()
    await asyncio.wait([holding])
    await lease.stop()


async def test_without_a_cluster_it_says_so_and_leaves_no_thread():
    before = threads_named("lease")

    async def connect() -> FakeClient:
        raise Terminal("no cluster")

    with pytest.raises(Terminal, match="no cluster"):
        await LeaseThread.start(connect, namespace="system", name="operator", identity="me")
    eventually(lambda: threads_named("lease") <= before)
