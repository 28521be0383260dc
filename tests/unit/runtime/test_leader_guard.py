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


class Desk:
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
def desk() -> Desk:
    return Desk()


def public(port: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(port, callable) if not name.startswith("_")}


def test_every_request_there_is_is_a_write_or_a_read_here() -> None:
    assert public(Kube) == public(LeaderKube) == WRITES.keys() | READS
    assert public(Workers) == public(LeaderWorkers) == {"state", "call"}


@pytest.mark.parametrize("how", WRITES)
async def test_a_leader_writes(desk: Desk, how: str) -> None:
    before = desk.cluster.version
    await WRITES[how](desk.kube)

    assert desk.cluster.version == before + 1


@pytest.mark.parametrize("how", WRITES)
async def test_a_process_that_does_not_lead_writes_nothing_and_gets_an_error(
    desk: Desk, how: str
) -> None:
    desk.leads, before = False, desk.cluster.version
    with pytest.raises(Terminal, match=NOT_LEADING):
        await WRITES[how](desk.kube)

    assert desk.cluster.version == before
    assert desk.inner.requests == [], "nothing is even sent"


async def test_a_write_that_was_made_ready_while_leading_is_stopped_when_it_begins(
    desk: Desk,
) -> None:
    """The process may have been frozen between the two."""
    ready = desk.kube.apply(POD, BODY)
    desk.leads = False
    with pytest.raises(Terminal, match=NOT_LEADING):
        await ready

    assert desk.inner.requests == []


async def test_who_leads_again_writes_again(desk: Desk) -> None:
    desk.leads = False
    with pytest.raises(Terminal):
        await desk.kube.apply(POD, BODY)
    desk.leads = True
    await desk.kube.apply(POD, BODY)

    assert desk.inner.requests == [("APPLY", POD)]


async def test_who_does_not_lead_may_look(desk: Desk) -> None:
    """A standby fills its caches, so that it can begin at once."""
    desk.leads = False
    events = desk.kube.watch(PODS, {"resourceVersion": "100"})

    assert (await desk.kube.get(CONFIG))["metadata"]["name"] == "policy-applied"
    assert (await desk.kube.get(PODS, {"limit": "5"}))["items"]
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
async def test_who_does_not_lead_drives_no_worker_and_does_not_know_what_it_did(kind: str) -> None:
    """Silence, not a refusal: the next leader is to look before it concludes anything."""
    leads, inner = [True], CountingWorkers()
    workers = LeaderWorkers(inner, lambda: leads[0])
    epoch = Epoch(term=3, sequence=1)
    await workers.call(WORKER, ACTIONS[kind], epoch)
    leads[0] = False
    answer = await workers.call(WORKER, ACTIONS[kind], epoch)

    assert inner.asked == [f"{ACTIONS[kind].work} http://w t 3"]
    assert answer == WorkerAnswer(silent=True, message=NOT_LEADING)


async def test_who_does_not_lead_may_ask_workers_how_they_are() -> None:
    inner = CountingWorkers()
    await LeaderWorkers(inner, lambda: False).state(WORKER)

    assert inner.asked == ["state http://w t"]
