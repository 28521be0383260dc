"""Objects that are deleted in a gap of the watch are forgotten, and all others stay known."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.support import virtual_time
from tests.support.fake_kube import FakeCluster, FakeKube
from tests.support.rig import FLEET_PATH, WEIGHTS_PATH, Rig
from tests.support.virtual_time import now

from fleet_operator.clients.bounded_json import read_closed
from fleet_operator.errors import Conflict, Retryable, Terminal
from fleet_operator.ports import Json
from fleet_operator.runtime import kopf_watch
from fleet_operator.runtime.custom_resources import (
    CHECK_SECONDS,
    LIST_SECONDS,
    REFUSED_SECONDS,
    CustomResources,
)
from fleet_operator.runtime.kopf_watch import build_registry
from fleet_operator.runtime.store import Store
from fleet_operator.time_shares import TimeShares

pytestmark = pytest.mark.virtual_time

ROOT = "/apis/rlfleet.dev/v1alpha1/namespaces"
KEY = ("rl", "policy")
SECOND_PATH = WEIGHTS_PATH.replace("/policy", "/second")


def path_of(plural: str, namespace: str, name: str) -> str:
    return f"{ROOT}/{namespace}/{plural}/{name}"


def metadata_of(namespace: str, name: str, uid: str) -> Json:
    made = {"name": name, "namespace": namespace, "uid": uid, "generation": 1}
    return made | {"creationTimestamp": "2026-01-01T00:00:00Z"}


def fleet(namespace: str = "rl", name: str = "policy", uid: str = "f1") -> tuple[str, Json]:
    spec = {
        "model": {"name": "m", "source": {"path": "/models/base"}},
        "weights": {"roots": ["/w"]},
    }
    body = {"kind": "InferenceFleet", "metadata": metadata_of(namespace, name, uid), "spec": spec}
    return path_of("inferencefleets", namespace, name), body


def weights(namespace: str = "rl", name: str = "policy", uid: str = "w1") -> tuple[str, Json]:
    spec = {"fleetRef": {"name": "policy"}, "version": "7", "source": {"path": "/w/{version}"}}
    body = {"kind": "WeightVersion", "metadata": metadata_of(namespace, name, uid), "spec": spec}
    return path_of("weightversions", namespace, name), body


class Meanwhile(FakeKube):
    """Does something after each page of a list."""

    after_page: Callable[[str], None] = staticmethod(lambda _path: None)

    async def get(self, path: str, params: Mapping[str, str] | None = None) -> Json:
        page = await super().get(path, params)
        self.after_page(path)
        return page


class Filled:
    """A store that was filled, and a watch that brings nothing."""

    def __init__(self, namespaces: tuple[str, ...] = ("rl", "lab")) -> None:
        self.cluster = FakeCluster()
        for namespace in namespaces:
            self.cluster.put(*fleet(namespace, uid=f"f-{namespace}"))
            self.cluster.put(*weights(namespace, uid=f"w-{namespace}"))
        self.kube = Meanwhile(self.cluster)
        self.woken: list[tuple[str, str]] = []
        self.store = Store(self.woken.append)
        self.resources = CustomResources(
            self.kube, self.store, namespaces, lambda _read, _error: None, TimeShares()
        )

    async def fill(self) -> None:
        await self.resources.fill()
        self.woken.clear()
        self.kube.requests.clear()

    @property
    def uids(self) -> set[str]:
        return self.store.uids(None)


ALL = {"f-rl", "w-rl", "f-lab", "w-lab"}


@pytest.mark.parametrize(
    ("path", "gone"),
    [
        (path_of("inferencefleets", "rl", "policy"), "f-rl"),
        (path_of("weightversions", "rl", "policy"), "w-rl"),
    ],
)
async def test_an_object_that_is_gone_is_forgotten_and_its_fleet_is_reconciled(path, gone):
    filled = Filled()
    await filled.fill()
    filled.cluster.drop(path)
    await filled.resources.forget_gone()

    assert filled.uids == ALL - {gone}
    assert filled.woken == [KEY], "as after a DELETED event"


async def test_a_check_lists_the_two_resources_and_no_pods():
    filled = Filled(("rl",))
    await filled.fill()
    await filled.resources.forget_gone()

    plurals = ("inferencefleets", "weightversions")
    assert filled.kube.requests == [("GET", f"{ROOT}/rl/{plural}") for plural in plurals]
    assert filled.woken == []


async def test_an_object_that_the_watch_brings_during_the_check_stays():
    filled = Filled(("rl",))
    await filled.fill()
    path, body = fleet(name="new", uid="f-new")

    def create(listed: str) -> None:
        if listed.endswith("/weightversions"):  # the fleets were listed before
            filled.store.put_fleet(filled.cluster.put(path, body))

    filled.kube.after_page = create
    await filled.resources.forget_gone()

    assert "f-new" in filled.uids


@pytest.mark.parametrize(
    "told", [True, False], ids=["the watch has delivered it", "the watch is late"]
)
async def test_the_predecessor_of_a_recreated_object_is_forgotten(*, told):
    filled = Filled(("rl",))
    await filled.fill()
    path, body = fleet(uid="f-second")

    def recreate(listed: str) -> None:
        if listed.endswith("/weightversions") and told:
            filled.store.put_fleet(stored)

    filled.cluster.drop(path)
    stored = filled.cluster.put(path, body)
    filled.kube.after_page = recreate
    await filled.resources.forget_gone()

    assert filled.uids == {"w-rl"} | ({"f-second"} if told else set())


@pytest.mark.parametrize("error", [Conflict("410"), Retryable("503"), Terminal("403")], ids=str)
@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
async def test_a_list_that_fails_keeps_the_objects_of_its_namespace_alone(error, plural):
    filled = Filled()
    await filled.fill()
    for path in list(filled.cluster.objects):
        filled.cluster.drop(path)
    refused = f"{ROOT}/rl/{plural}"
    filled.kube.refuses = lambda _verb, path: error if path == refused else None
    await filled.resources.forget_gone()

    assert filled.uids == {"f-rl", "w-rl"}


async def test_objects_on_later_pages_stay():
    filled = Filled(("rl",))
    for number in range(5):
        filled.cluster.put(*weights(name=f"more-{number}", uid=f"more-{number}"))
    await filled.fill()
    filled.kube.page_size = 2
    filled.cluster.drop(path_of("weightversions", "rl", "more-1"))
    await filled.resources.forget_gone()

    kept = {f"more-{number}" for number in (0, 2, 3, 4)}
    assert filled.uids == {"f-rl", "w-rl"} | kept


class Checking:
    """Checks that run from time to time, on a watch of kopf's handlers."""

    def __init__(self, filled: Filled) -> None:
        self.filled = filled
        registry = build_registry(
            filled.store, TimeShares(), filled.resources.note_listed, lambda: False
        )
        self.handlers = {h.selector.any_name: h.fn for h in registry._watching._handlers}
        self.began_at: list[float] = []
        filled.kube.after_page = self._note

    def _note(self, listed: str) -> None:
        if listed.endswith("rl/inferencefleets"):
            self.began_at.append(now())

    async def deliver(self, plural: str, kind: str | None, body: Json) -> None:
        handler: Any = self.handlers[plural]
        closed = read_closed(json.dumps(body).encode())
        await handler(body=closed, type=kind, event={}, logger=None, memo=None)


def played(story: Callable[[Checking], Any]) -> None:
    async def whole() -> None:
        filled = Filled(("rl",))
        await filled.fill()
        task = asyncio.create_task(filled.resources.keep_forgetting())
        try:
            await story(Checking(filled))
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])

    virtual_time.run(whole())


def test_checks_come_from_time_to_time_also_after_one_that_failed():
    async def story(checking: Checking) -> None:
        checking.filled.cluster.drop(path_of("weightversions", "rl", "policy"))
        checking.filled.kube.error = Retryable("503")
        await asyncio.sleep(CHECK_SECONDS + 2 * LIST_SECONDS)
        assert "w-rl" in checking.filled.uids
        checking.filled.kube.error = None
        await asyncio.sleep(CHECK_SECONDS + 2 * LIST_SECONDS)
        assert checking.filled.uids == {"f-rl"}
        assert len(checking.began_at) == 1

    played(story)


@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
def test_a_new_list_of_the_watch_is_followed_by_one_check(plural):
    async def story(checking: Checking) -> None:
        checking.filled.cluster.drop(path_of("weightversions", "rl", "policy"))
        for number in range(50):
            _, body = (fleet if plural == "inferencefleets" else weights)(name=f"n{number}", uid="")
            body["metadata"]["uid"] = f"n{number}"
            checking.filled.cluster.put(path_of(plural, "rl", f"n{number}"), body)
            await checking.deliver(plural, None, body)
            await asyncio.sleep(LIST_SECONDS / 100)
        await asyncio.sleep(2 * LIST_SECONDS)
        assert len(checking.began_at) == 1
        assert "w-rl" not in checking.filled.uids
        assert len(checking.filled.uids) == 51

    played(story)


def test_other_events_request_no_check():
    async def story(checking: Checking) -> None:
        for kind in ("ADDED", "MODIFIED", "DELETED"):
            await checking.deliver("inferencefleets", kind, fleet()[1])
            await checking.deliver("weightversions", kind, weights()[1])
        await asyncio.sleep(2 * LIST_SECONDS)
        assert checking.began_at == []

    played(story)


# --- refused reads ------------------------------------------------------------------------------


class Watched:
    """Runs in place of kopf's: their namespaces, and the end of the last one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: asyncio.Queue[tuple[str, ...]] = asyncio.Queue()
        self.broken = asyncio.Event()
        monkeypatch.setattr(kopf_watch, "run", self._run)

    async def _run(
        self,
        _store: object,
        namespaces: tuple[str, ...],
        ready: asyncio.Event,
        _listed: object,
        stop: asyncio.Event,
        _shares: object,
    ) -> None:
        self.begun.put_nowait(namespaces)
        self.broken = asyncio.Event()
        ready.set()
        ends = [asyncio.create_task(each.wait()) for each in (self.broken, stop)]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        if self.broken.is_set():
            raise RuntimeError("403, as kopf raises it")

    async def next(self) -> tuple[str, ...]:
        async with asyncio.timeout(2 * REFUSED_SECONDS):
            return await self.begun.get()


async def test_the_other_namespaces_are_watched_while_one_is_refused(monkeypatch):
    watched, filled = Watched(monkeypatch), Filled()
    await filled.fill()
    task = asyncio.create_task(filled.resources.follow(asyncio.Event(), lambda: None))
    assert await watched.next() == ("rl", "lab")
    filled.kube.refuses = lambda _verb, path: Terminal("403") if "/lab/" in path else None
    watched.broken.set()
    filled.cluster.put(*fleet(name="new", uid="f-new"))
    for namespace in ("rl", "lab"):
        filled.cluster.drop(path_of("weightversions", namespace, "policy"))
    assert await watched.next() == ("rl",)
    assert filled.uids == {"f-rl", "f-new", "f-lab", "w-lab"}
    await asyncio.sleep(10 * REFUSED_SECONDS)
    assert watched.begun.empty()
    filled.kube.refuses = lambda _verb, _path: None
    assert await watched.next() == ("rl", "lab")
    assert filled.uids == {"f-rl", "f-new", "f-lab"}
    task.cancel()
    await asyncio.wait([task])


# --- what depends on it -------------------------------------------------------------------------


async def test_the_successor_of_a_weight_version_that_was_deleted_in_a_gap_steers_the_fleet():
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        second = copy.deepcopy(rig.cluster.objects[WEIGHTS_PATH])
        second["metadata"] |= {
            "name": "second",
            "uid": "weights-2",
            "creationTimestamp": "2026-01-01T01:00:00+00:00",
        }
        second["spec"]["version"] = "2"
        rig.cluster.drop(WEIGHTS_PATH)
        rig.operator.store.put_weights(rig.cluster.put(SECOND_PATH, second))
        await rig.until(lambda: rig.serving == ["2", "2"])


async def test_a_fleet_that_was_deleted_in_a_gap_gets_no_pod_and_no_secret():
    async with Rig(replicas=2) as rig:
        await rig.applied("1")
        for path in [p for p in rig.cluster.objects if p.startswith(FLEET_PATH)]:
            rig.cluster.drop(path)
        owned = [p for p, o in rig.cluster.objects.items() if "ownerReferences" in o["metadata"]]
        for path in owned:  # as the garbage collector does
            rig.cluster.drop(path)
        before = len(rig.kube.requests)
        await rig.until(lambda: rig.operator.store.fleet(KEY) is None)
        sent = rig.kube.requests[before:]
        kinds = ("/pods", "/secrets")
        assert [p for verb, p in sent if verb == "POST" and p.endswith(kinds)] == []
