"""The knowledge of a leader before its first decision, and the log of a process that cannot start."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Mapping
from typing import Any

import pytest
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.rig import LEASE_PATHS, FakeWorkers
from tests.support.virtual_time import now

from fleet_operator.clients.kube import KubeClient
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.errors import Conflict, NotFound, Retryable, Terminal, Unknown
from fleet_operator.ports import Json
from fleet_operator.runtime import main
from fleet_operator.runtime.custom_resources import CustomResources
from fleet_operator.runtime.lease import Lease
from fleet_operator.runtime.main import EXIT_CANNOT_START
from fleet_operator.runtime.operator_process import Operator
from fleet_operator.runtime.permissions import RETRY_SECONDS
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.store import Store
from fleet_operator.time_shares import TimeShares

SETTINGS = Settings.model_construct(
    namespaces=("rl", "lab"),
    lease_namespace="rl",
    lease_name="operator",
    default_image="",
    port=0,
    log_format="text",
    log_level="INFO",
    resync_seconds=30.0,
    identity="me",
)


def fleet_in(namespace: str, name: str = "policy", **spec: Any) -> tuple[str, Json]:
    source = {"path": "/models/base"}
    body = {
        "kind": "InferenceFleet",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"f-{namespace}",
            "generation": 1,
        },
        "spec": {"model": {"name": "m", "source": source}, "weights": {"roots": ["/w"]}} | spec,
    }
    return f"/apis/rlfleet.dev/v1alpha1/namespaces/{namespace}/inferencefleets/{name}", body


def weights_in(namespace: str, version: str) -> tuple[str, Json]:
    metadata = {"name": "policy", "namespace": namespace, "uid": f"w-{namespace}", "generation": 1}
    spec = {"fleetRef": {"name": "policy"}, "version": version, "source": {"path": "/w/{version}"}}
    body = {
        "kind": "WeightVersion",
        "metadata": metadata | {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec,
    }
    return f"/apis/rlfleet.dev/v1alpha1/namespaces/{namespace}/weightversions/policy", body


def pod_in(namespace: str, ordinal: int) -> tuple[str, Json]:
    labels = {"rlfleet.dev/fleet": "policy", "rlfleet.dev/ordinal": str(ordinal)}
    name = f"policy-{ordinal}"
    body = {"metadata": {"name": name, "namespace": namespace, "labels": labels}}
    return f"/api/v1/namespaces/{namespace}/pods/{name}", body


class Start:
    """An operator that leads and fills its caches."""

    def __init__(self, *, namespaces: tuple[str, ...] = ("rl", "lab")) -> None:
        cluster = FakeCluster()
        for namespace in ("rl", "lab", "elsewhere"):
            cluster.put(*fleet_in(namespace))
            cluster.put(*weights_in(namespace, f"of-{namespace}"))
            cluster.put(*pod_in(namespace, 0))
        self.cluster = cluster
        self.kube = FakeKube(cluster, unguarded=LEASE_PATHS)
        settings = SETTINGS.model_copy(update={"namespaces": namespaces})
        lease = Lease(self.kube, namespace="rl", name="operator", identity="me", clock=now)
        self.operator = Operator(settings, self.kube, FakeWorkers(), lease)

    async def fill(self) -> None:
        pods = asyncio.create_task(self.operator.pods.run())
        try:
            await self.operator._fill()
        finally:
            pods.cancel()
            await asyncio.wait([pods])

    def known(self, namespace: str) -> tuple[bool, list[str], int]:
        """Whether the fleet is known, its versions, and the number of its pods."""
        key = (namespace, "policy")
        versions = [w.spec.version for w in self.operator.store.weights_of(key)]
        fleet = self.operator.store.fleet(key)
        return fleet is not None, versions, len(self.operator.pods.pods_of(key))


@pytest.mark.parametrize(
    ("namespaces", "known"),
    [(("rl",), {"rl"}), (("rl", "lab"), {"rl", "lab"}), ((), {"rl", "lab", "elsewhere"})],
)
@pytest.mark.virtual_time
async def test_all_of_the_watched_namespaces_is_known_before_anything_is_decided(namespaces, known):
    start = Start(namespaces=namespaces)
    await start.fill()
    for namespace in ("rl", "lab", "elsewhere"):
        expected = (True, [f"of-{namespace}"], 1) if namespace in known else (False, [], 0)
        assert start.known(namespace) == expected
    assert start.operator.synced


@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions", "pods"])
@pytest.mark.parametrize("error", [Retryable("429", after_seconds=1), Retryable("503")], ids=str)
@pytest.mark.virtual_time
async def test_a_server_that_is_not_ready_yet_is_waited_for(plural, error):
    start = Start()
    until = now() + 2.5 * RETRY_SECONDS
    start.kube.refuses = lambda verb, path: (
        error if verb == "GET" and path.endswith(f"/{plural}") and now() < until else None
    )
    filling = asyncio.create_task(start.fill())
    await asyncio.sleep(2.4 * RETRY_SECONDS)
    assert not start.operator.synced, "nothing is decided on half of the objects"
    await filling
    assert start.known("lab") == (True, ["of-lab"], 1)
    tries = [p for v, p in start.kube.requests if v == "GET" and p.endswith(f"/{plural}")]
    assert len(tries) <= 20, "it is not stormed"


@pytest.mark.virtual_time
async def test_removed_resources_are_reported_by_name():
    start = Start()
    for path in [p for p in start.cluster.objects if "/rlfleet.dev/" in p]:
        start.cluster.drop(path)

    start.kube.refuses = lambda _verb, path: NotFound(path) if "/rlfleet.dev/" in path else None
    with pytest.raises(Terminal, match="CRD"):
        await start.fill()


@pytest.mark.virtual_time
async def test_one_object_that_cannot_be_read_does_not_hide_the_others(caplog):
    start = Start()
    start.cluster.put(*fleet_in("rl", "another", replicas=-1))
    await start.fill()
    assert start.known("rl") == (True, ["of-rl"], 1)
    assert start.known("lab") == (True, ["of-lab"], 1)
    assert "InferenceFleet rl/another cannot be read" in caplog.text


@pytest.mark.parametrize("compacted", [False, True], ids=["in time", "token expired"])
@pytest.mark.virtual_time
async def test_custom_resources_are_read_page_by_page(*, compacted):
    class Paging(FakeKube):
        """Notes how many raw WeightVersions are held when the next page is read."""

        async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
            if not path.endswith("/weightversions"):
                return await super().get(path, params)
            gc.collect()
            held.append(sum(ref() is not None for ref in raw))
            if compacted and len(held) == 3:
                raise Conflict("the continue token is too old")
            page = await super().get(path, params)
            page["items"] = [Raw(each) for each in page["items"]]
            raw.extend(weakref.ref(each) for each in page["items"])
            return page

    class Raw(dict[str, Any]):
        """A raw object that can be counted while it lives."""

    held: list[int] = []
    raw: list[weakref.ref[Raw]] = []

    start = Start(namespaces=("rl",))
    for number in range(99):
        path, body = weights_in("rl", f"v{number}")
        body["metadata"] |= {"name": f"more-{number}", "uid": f"more-{number}"}
        start.cluster.put(path.replace("/policy", f"/more-{number}"), body)
    kube = Paging(start.cluster)
    kube.page_size = 10
    store = Store(lambda _key: None)
    await CustomResources(kube, store, ("rl",), lambda _read, _error: None, TimeShares()).fill()
    assert len(store.weights_of(("rl", "policy"))) == 100
    assert len(held) == 13 if compacted else len(held) == 10
    assert max(held) <= 10


# --- a process that cannot start ----------------------------------------------------------------


class Closing:
    """A client that only knows whether it was closed."""

    def __init__(self) -> None:
        self.closed = 0

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Terminal("no cluster: neither a pod's"), EXIT_CANNOT_START, "cannot start: no cluster"),
        (Unknown("the server is gone"), 1, "the server is gone"),
        (Retryable("503"), 1, "503"),
    ],
)
@pytest.mark.parametrize("when", ["connecting", "running"])
async def test_a_failed_start_is_reported_with_an_exit_code_and_nothing_stays_open(
    monkeypatch, caplog, error, code, message, when
):
    made: list[Closing] = []

    async def connect() -> Closing:
        if when == "connecting":
            raise error
        made.append(Closing())
        return made[-1]

    async def run(_: Operator, _stop: asyncio.Event) -> int:
        raise error

    monkeypatch.setattr(KubeClient, "connect", connect)
    monkeypatch.setattr(Operator, "run", run)
    monkeypatch.setattr(WorkerClient, "close", closing := Closing().close)
    monkeypatch.setattr(main, "take_signals", lambda _: None)
    monkeypatch.setattr(main.logs, "set_up", lambda **_: None)

    assert await main.run(SETTINGS) == code
    assert message in caplog.text
    assert [client.closed for client in made] == [1] * len(made)
    assert closing.__self__.closed == (when == "running")
