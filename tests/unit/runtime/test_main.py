"""A process from its start to its end: what it waits for, and with which code it ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.rig import LEASE_PATHS, FakeWorkers
from tests.support.virtual_time import now
from tests.unit.runtime.test_metrics import series

from fleet_operator.errors import NotFound, Retryable, Terminal
from fleet_operator.ports import NOT_LEADING
from fleet_operator.runtime import health, kopf_watch, main, operator_process
from fleet_operator.runtime.custom_resources import LONGEST_RETRY_SECONDS
from fleet_operator.runtime.lease import Lease
from fleet_operator.runtime.operator_process import EXIT_LOST_LEASE, STUCK_SECONDS, Operator
from fleet_operator.runtime.permissions import REVIEWS
from fleet_operator.runtime.settings import Settings

pytestmark = pytest.mark.virtual_time

KEY = ("rl", "policy")
FLEET_PATH = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/inferencefleets/policy"
FLEET = {
    "kind": "InferenceFleet",
    "metadata": {"name": "policy", "namespace": "rl", "uid": "fleet-1", "generation": 1},
    "spec": {
        "replicas": 0,
        "model": {"name": "m", "source": {"path": "/models/base"}},
        "weights": {"roots": ["/weights"]},
    },
}
CONFIG = "/api/v1/namespaces/rl/configmaps/policy-applied"
LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/rl/leases/operator"


class Server(FakeKube):
    """An API server that allows everything, with CRDs unless the test removes them."""

    crds = True

    async def create(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if path.endswith("selfsubjectaccessreviews"):
            await self._begin("REVIEW", path)
            return {"status": {"allowed": True}}
        return await super().create(path, body)

    async def get(self, path: str, params: Any = None) -> dict[str, Any]:
        if "/rlfleet.dev/" in path:
            await self._begin("GET", path)
            if not self.crds:
                raise NotFound(path)
            return {"items": [], "metadata": {}}
        return await super().get(path, params)


class Process:
    """An operator process without sockets and without kopf."""

    def __init__(
        self, cluster: FakeCluster, *, identity: str = "me", server: type[Server] | None = None
    ) -> None:
        self.server = (server or Server)(cluster, unguarded=LEASE_PATHS)
        settings = Settings.model_construct(
            namespaces=("rl",),
            lease_namespace="rl",
            lease_name="operator",
            default_image="",
            port=0,
            log_format="text",
            log_level="INFO",
            resync_seconds=30.0,
            identity=identity,
        )
        lease = Lease(self.server, namespace="rl", name="operator", identity=identity, clock=now)
        self.operator = Operator(settings, self.server, FakeWorkers(), lease)
        self.stop = asyncio.Event()
        self.ended: asyncio.Task[int] | None = None

    def start(self) -> None:
        self.ended = asyncio.create_task(self.operator.run(self.stop))

    async def until(self, condition: Callable[[], object], *, seconds: float = 60) -> None:
        started = now()
        while not condition():
            assert now() - started < seconds
            await asyncio.sleep(0.1)

    async def code(self, *, within_seconds: float) -> int:
        assert self.ended is not None
        async with asyncio.timeout(within_seconds):
            return await self.ended


class Quiet:
    """Replaces a port of the process."""

    async def cleanup(self) -> None:
        pass


@pytest.fixture(autouse=True)
def without_sockets_and_kopf(monkeypatch):
    async def serve(*_: object, **__: object) -> Quiet:
        return Quiet()

    async def watches(_store: object, _spaces: object, ready: asyncio.Event, *_: object) -> None:
        ready.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(health, "serve_probes", serve)
    monkeypatch.setattr(health, "serve_metrics", serve)
    monkeypatch.setattr(kopf_watch, "run", watches)
    monkeypatch.setattr(operator_process, "take_signals", lambda _: None)


async def test_a_stopped_leader_ends_with_0_and_releases_the_lease():
    process = Process(cluster := FakeCluster())
    process.start()
    await process.until(lambda: process.operator.synced)
    process.stop.set()
    assert await process.code(within_seconds=1) == 0
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""


async def test_a_stopped_standby_ends_with_0_and_takes_nothing():
    cluster = FakeCluster()
    leader, standby = Process(cluster), Process(cluster, identity="standby")
    leader.start()
    await leader.until(lambda: leader.operator.synced)
    standby.start()
    await asyncio.sleep(5)
    standby.stop.set()
    assert await standby.code(within_seconds=1) == 0
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == "me"
    leader.stop.set()
    await leader.code(within_seconds=1)


async def test_a_leader_whose_lease_is_taken_ends_with_3():
    process = Process(cluster := FakeCluster())
    process.start()
    await process.until(lambda: process.operator.synced)
    lease = cluster.objects[LEASE_PATH]
    cluster.put(LEASE_PATH, lease | {"spec": lease["spec"] | {"holderIdentity": "other"}})
    assert await process.code(within_seconds=3) == EXIT_LOST_LEASE
    assert cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == "other"


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param({"error": Retryable("503")}, id="fails"),
        pytest.param({"hangs": True}, id="hangs"),
    ],
)
async def test_a_leader_whose_server_is_gone_ends_with_3_at_the_deadline(fault):
    process = Process(FakeCluster())
    process.start()
    await process.until(lambda: process.operator.synced)
    for name, value in fault.items():
        setattr(process.server, name, value)
    assert await process.code(within_seconds=11) == EXIT_LOST_LEASE


def refuses_lists(_verb: str, path: str) -> Retryable | None:
    lists = path.endswith(("/inferencefleets", "/weightversions"))
    return Retryable("429: the storage is initializing") if lists else None


class TestChecking:
    """A process that may be unable to lead is not ready, and leads nothing."""

    async def test_a_server_that_cannot_answer_yet_is_waited_for(self):
        process = Process(cluster := FakeCluster())
        process.server.error = Retryable("503")
        process.start()
        await asyncio.sleep(40)
        assert "not checked yet" in process.operator._not_ready()
        assert LEASE_PATH not in cluster.objects
        process.server.error = None
        await process.until(lambda: process.operator.synced, seconds=2)
        assert process.operator._not_ready() == ""
        process.stop.set()
        assert await process.code(within_seconds=1) == 0

    async def test_the_operator_can_be_stopped_meanwhile(self):
        process = Process(FakeCluster())
        process.server.hangs = True
        process.start()
        await asyncio.sleep(5)
        process.stop.set()
        assert await process.code(within_seconds=1) == 0

    async def test_missing_crds_are_reported_with_what_to_install(self):
        process = Process(FakeCluster())
        process.server.crds = False
        process.start()
        with pytest.raises(Terminal, match=r"install the CRDs .*kubectl apply -f crds/"):
            await process.code(within_seconds=5)
        assert LEASE_PATH not in process.server.cluster.objects

    async def test_a_standby_that_could_lead_is_ready(self):
        leader, standby = Process(cluster := FakeCluster()), Process(cluster, identity="other")
        leader.start()
        await leader.until(lambda: leader.operator.synced)
        standby.start()
        await standby.until(lambda: standby.operator.fit, seconds=2)
        assert standby.operator._not_ready() == ""
        for process in (standby, leader):
            process.stop.set()
            await process.code(within_seconds=1)


class TestFilling:
    """Before its caches are filled a leader decides nothing, but it can be stopped."""

    async def test_a_server_that_needs_time_for_new_crds_is_waited_for(self):
        process = Process(FakeCluster())
        process.server.refuses = refuses_lists
        process.start()
        await asyncio.sleep(40)
        assert process.operator._not_ready() == "the caches are not filled yet"
        process.server.refuses = lambda _v, _p: None
        await process.until(lambda: process.operator.synced, seconds=LONGEST_RETRY_SECONDS + 1)
        assert process.operator._not_ready() == ""
        process.stop.set()
        assert await process.code(within_seconds=1) == 0

    async def test_the_operator_can_be_stopped_meanwhile(self):
        process = Process(FakeCluster())
        process.server.refuses = refuses_lists
        process.start()
        await asyncio.sleep(5)
        process.stop.set()
        assert await process.code(within_seconds=1) == 0

    async def test_the_operator_ends_when_the_lease_is_lost_meanwhile(self):
        process = Process(cluster := FakeCluster())
        process.server.refuses = refuses_lists
        process.start()
        await asyncio.sleep(5)
        lease = cluster.objects[LEASE_PATH]
        cluster.put(LEASE_PATH, lease | {"spec": lease["spec"] | {"holderIdentity": "other"}})
        assert await process.code(within_seconds=3) == EXIT_LOST_LEASE

    async def test_an_operator_that_cannot_list_pods_can_be_stopped(self):
        process = Process(FakeCluster())
        process.server.refuses = lambda _v, p: Terminal("403") if p.endswith("/pods") else None
        process.start()
        await asyncio.sleep(5)
        assert not process.operator.pods.is_synced("rl")
        assert process.operator.synced, "the fleets are worked on: they report it"
        process.stop.set()
        assert await process.code(within_seconds=1) == 0

    async def test_crds_that_are_deleted_meanwhile_end_the_process(self):
        process = Process(FakeCluster())
        process.server.refuses = refuses_lists
        process.start()
        await process.until(lambda: process.operator.fit)
        process.server.crds, process.server.refuses = False, lambda _v, _p: None
        with pytest.raises(Terminal, match=r"install the CRDs .*kubectl apply -f crds/"):
            await process.code(within_seconds=5)
        assert process.server.cluster.objects[LEASE_PATH]["spec"]["holderIdentity"] == ""


@pytest.mark.parametrize("part", ["child_watch", "schemas", "watches"])
async def test_a_part_that_fails_is_begun_again_and_ends_neither_the_process_nor_the_others(
    monkeypatch, part
):
    begun_at: list[float] = []

    async def fail() -> None:
        begun_at.append(now())
        await asyncio.sleep(10)
        raise RuntimeError("a defect")

    async def watch_and_fail(_s: object, _n: object, ready: asyncio.Event, *_: object) -> None:
        ready.set()
        await fail()

    cluster = FakeCluster()
    cluster.put(FLEET_PATH, FLEET)
    process = Process(cluster)
    if part == "watches":
        monkeypatch.setattr(kopf_watch, "run", watch_and_fail)
    else:
        monkeypatch.setattr(getattr(process.operator, part), "run", fail)
    process.start()
    await process.until(lambda: len(begun_at) == 3, seconds=60)
    assert process.ended is not None
    assert not process.ended.done()
    assert process.operator.lease.is_leader
    assert "InternalError" in {p.reason for p in process.operator.problems.of(KEY)}
    process.stop.set()
    assert await process.code(within_seconds=10) == 0


async def test_a_process_that_does_not_lead_writes_nothing_and_may_ask_for_its_permissions():
    """It may have been frozen in the middle of its work."""

    process = Process(FakeCluster())
    writes = ("create", "replace", "apply", "merge")
    for write in (*(getattr(process.server, w)(CONFIG, {}) for w in writes), deletion(process)):
        with pytest.raises(Terminal, match=NOT_LEADING):
            await write
    assert process.server.requests == [], "nothing is even sent"
    await process.server.create(REVIEWS, {"metadata": {"name": "review"}, "spec": {}})
    process.start()
    await process.until(lambda: process.operator.synced)
    await process.server.apply(CONFIG, {"kind": "ConfigMap", "metadata": {"name": "c"}})
    process.stop.set()
    await process.code(within_seconds=10)


async def test_the_process_measures_its_requests_to_the_api_server():
    process = Process(FakeCluster())
    process.server.hooks.after("apply", 0.5)

    measured = series(process.operator.metrics, "rlfleet_api_request_seconds_count")
    assert measured == {'{verb="apply"}': 1}


def deletion(process: Process) -> Awaitable[None]:
    return process.server.delete(CONFIG, uid="u")


async def test_only_a_leader_can_be_not_live():
    process = Process(FakeCluster())
    assert process.operator._not_live() == ""
    process.start()
    await process.until(lambda: process.operator.synced)
    assert process.operator._not_live() == ""
    process.server.hangs = True
    await process.until(lambda: not process.operator.lease.is_leader)
    assert process.operator._not_live() == "the Lease has expired"
    await process.code(within_seconds=5)


async def test_a_leader_whose_queue_has_stopped_is_not_live():
    process = Process(FakeCluster())

    async def works_on_nothing() -> None:
        await asyncio.get_running_loop().create_future()

    process.operator._work = works_on_nothing
    process.start()
    await process.until(lambda: process.operator.synced)
    process.operator.queue.add(("rl", "policy"))
    await asyncio.sleep(STUCK_SECONDS - 1)
    assert process.operator._not_live() == ""
    await asyncio.sleep(2)
    waited = f"a fleet has been waiting for {STUCK_SECONDS + 1:.0f} s"
    assert process.operator._not_live() == waited
    process.stop.set()
    await process.code(within_seconds=5)


class ServerWithoutRights(Server):
    """An API server that can refuse to list or to watch the custom resources."""

    def forbid(self, verb: str, plural: str) -> None:
        self.refuses = lambda v, p: (
            Terminal("403 forbidden") if v == verb and p.endswith(plural) else None
        )

    async def get(self, path: str, params: Any = None) -> dict[str, Any]:
        found = await super().get(path, params)
        if "/rlfleet.dev/" not in path:
            return found
        if path in self.cluster.objects:
            return self.cluster.objects[path]
        version = {"resourceVersion": str(self.cluster.version)}
        return {"items": self.cluster.below(path), "metadata": version}


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
async def test_resources_without_the_right_to_read_are_reported_and_watched_again_later(
    monkeypatch, verb, plural
):
    begun: list[asyncio.Future[None]] = []

    async def watches(_store: object, _spaces: object, ready: asyncio.Event, *_: object) -> None:
        ready.set()
        begun.append(asyncio.get_running_loop().create_future())
        await begun[-1]

    monkeypatch.setattr(kopf_watch, "run", watches)

    cluster = FakeCluster()
    cluster.put(FLEET_PATH, FLEET)
    process = Process(cluster, server=ServerWithoutRights)
    process.start()
    problems = process.operator.problems
    await process.until(lambda: begun)
    process.server.forbid({"list": "GET", "watch": "WATCH"}[verb], plural)
    begun[-1].set_exception(RuntimeError("403, as kopf raises it"))
    await process.until(lambda: problems.of(KEY))
    (problem,) = problems.of(KEY)
    assert problem.reason == "ReadRefused"
    assert not problem.leaves_ready
    assert f"{verb} {plural}" in problem.message
    assert problems.of(("elsewhere", "policy")) == ()
    await asyncio.sleep(300)
    assert len(begun) == 1, "nothing is watched while it is refused"
    cluster.drop(FLEET_PATH)
    process.server.refuses = lambda _v, _p: None
    await process.until(lambda: len(begun) == 2, seconds=90)
    assert problems.of(KEY) == ()
    assert process.operator.store.fleet_keys() == [], "what went meanwhile is forgotten"
    process.stop.set()
    assert await process.code(within_seconds=10) == 0


async def test_without_an_endpoint_there_is_no_tracing():
    async with AsyncExitStack() as stack:
        assert main._tracing("", stack) is None


async def test_an_endpoint_without_the_libraries_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "fleet_operator.runtime.tracing", None)

    async with AsyncExitStack() as stack:
        with pytest.raises(Terminal, match=r"rlfleet-server\[tracing\]"):
            main._tracing("http://collector:4318", stack)
