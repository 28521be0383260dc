"""A process that is not the leader changes nothing, not even in the middle of work; it may always read."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from tests.support.builders import make_worker, target
from tests.support.fake_kube import FakeCluster

from fleet_operator.api.fleet import Rollout
from fleet_operator.core import worker_calls
from fleet_operator.core.actions import WorkerCall
from fleet_operator.errors import Terminal
from fleet_operator.ports import Addressee, Json, Kube, WorkerAnswer, Workers
from fleet_operator.runtime.leader_guard import NOT_LEADING, LeaderKube, LeaderWorkers
from fleet_worker.protocol import Epoch

PODS = "/api/v1/namespaces/rl/pods"
POD = f"{PODS}/policy-0"
CONFIG = "/api/v1/namespaces/rl/configmaps/policy-applied"
BODY: Json = {"kind": "Pod", "metadata": {"name": "policy-0", "namespace": "rl"}}
WRITES: dict[str, Callable[[LeaderKube], Awaitable[Any]]] = {
    "create": lambda kube: kube.create(PODS, BODY | {"metadata": {"name": "policy-1"}}),
    "replace": lambda kube: kube.replace(
        POD, BODY | {"metadata": {"name": "policy-0", "resourceVersion": "101"}}
    ),
    "apply": lambda kube: kube.apply(POD, BODY),
    "merge": lambda kube: kube.merge(POD, {"metadata": {"labels": {"a": "b"}}}),
    "delete": lambda kube: kube.delete(POD, uid=f"uid-{POD}"),
}
READS = {"get", "watch"}


class Harness:
    """A client that is the leader until the test ends that."""

    def __init__(self) -> None:
        self.leads = True
        self.cluster = FakeCluster()
        self.cluster.put(POD, BODY)
        named = {"name": "policy-applied", "namespace": "rl"}
        self.cluster.put(CONFIG, {"kind": "ConfigMap", "metadata": named})
        self.inner = self.cluster.client()
        self.kube = LeaderKube(self.inner, lambda: self.leads)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def public(port: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(port, callable) if not name.startswith("_")}


def test_every_request_there_is_is_a_write_or_a_read_here() -> None:
    assert public(Kube) == public(LeaderKube) == WRITES.keys() | READS
    assert public(Workers) == public(LeaderWorkers) == {"state", "call"}


@pytest.mark.parametrize("how", WRITES)
async def test_a_leader_writes(harness: Harness, how: str) -> None:
    before = harness.cluster.version
    await WRITES[how](harness.kube)

    assert harness.cluster.version == before + 1


@pytest.mark.parametrize("how", WRITES)
async def test_a_process_that_does_not_lead_writes_nothing_and_gets_an_error(
    harness: Harness, how: str
) -> None:
    harness.leads, before = False, harness.cluster.version
    with pytest.raises(Terminal, match=NOT_LEADING):
        await WRITES[how](harness.kube)

    assert harness.cluster.version == before
    assert harness.inner.requests == [], "nothing is even sent"


async def test_a_write_that_was_made_ready_while_leading_is_stopped_when_it_begins(
    harness: Harness,
) -> None:
    """The process may have been frozen between the two."""
    ready = harness.kube.apply(POD, BODY)
    harness.leads = False
    with pytest.raises(Terminal, match=NOT_LEADING):
        await ready

    assert harness.inner.requests == []


async def test_a_new_leader_writes_again(harness: Harness) -> None:
    harness.leads = False
    with pytest.raises(Terminal):
        await harness.kube.apply(POD, BODY)
    harness.leads = True
    await harness.kube.apply(POD, BODY)

    assert harness.inner.requests == [("APPLY", POD)]


async def test_a_standby_may_read(harness: Harness) -> None:
    """A standby fills its caches, so that it can begin at once."""
    harness.leads = False
    events = harness.kube.watch(PODS, {"resourceVersion": "100"})

    assert (await harness.kube.get(CONFIG))["metadata"]["name"] == "policy-applied"
    assert (await harness.kube.get(PODS, {"limit": "5"}))["items"]
    assert (await anext(aiter(events)))["type"] == "ADDED"
    assert isinstance(events, AsyncIterator)


class CountingWorkers:
    """Workers that say yes, and count. Implements `ports.Workers`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def state(self, worker: Addressee) -> WorkerAnswer:
        self.asked.append(f"state {worker.base_url} {worker.token}")
        return WorkerAnswer()

    async def call(self, worker: Addressee, action: WorkerCall, epoch: Epoch) -> WorkerAnswer:
        self.asked.append(f"{action.work} {worker.base_url} {worker.token} {epoch.term}")
        return WorkerAnswer()


WORKER = Addressee(base_url="http://w", token="t", pod_uid="uid-0")


VIEW = make_worker().serving("1").view()
ACTIONS: Mapping[str, WorkerCall] = {
    "stage": worker_calls.stage(VIEW, target("2"), Rollout(), reason="x"),
    "pause": worker_calls.pause(VIEW, Rollout(), reason="x"),
    "load": worker_calls.load(VIEW, target("2"), Rollout(), reason="x"),
    "resume": worker_calls.resume(VIEW, reason="x"),
    "admit": worker_calls.admit(VIEW, reason="x"),
    "fence": worker_calls.fence_after_drain(VIEW, Rollout(), reason="x"),
}


@pytest.mark.parametrize("kind", ACTIONS)
async def test_a_standby_calls_no_worker(kind: str) -> None:
    """Silence, not a refusal: the next leader is to look before it concludes anything."""
    leads, inner = [True], CountingWorkers()
    workers = LeaderWorkers(inner, lambda: leads[0])
    epoch = Epoch(term=3, sequence=1)
    await workers.call(WORKER, ACTIONS[kind], epoch)
    leads[0] = False
    answer = await workers.call(WORKER, ACTIONS[kind], epoch)

    assert inner.asked == [f"{ACTIONS[kind].work} http://w t 3"]
    assert answer == WorkerAnswer(silent=True, message=NOT_LEADING)


async def test_a_standby_may_read_worker_states() -> None:
    inner = CountingWorkers()
    await LeaderWorkers(inner, lambda: False).state(WORKER)

    assert inner.asked == ["state http://w t"]
