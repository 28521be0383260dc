"""Objects from kopf's watches go into the store, and nothing is written through them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection
from typing import Any

import kopf
import pytest

from fleet_operator.clients.bounded_json import read_closed
from fleet_operator.runtime import kopf_watch
from fleet_operator.runtime.kopf_watch import build_registry, build_settings
from fleet_operator.runtime.store import Store
from fleet_operator.time_shares import TimeShares

KEY = ("rl", "policy")
FLEET: dict[str, Any] = {
    "metadata": {"name": "policy", "namespace": "rl", "uid": "u1", "generation": 1},
    "spec": {
        "model": {"name": "m", "source": {"path": "/models/base"}},
        "weights": {"roots": ["/weights"]},
    },
}
WEIGHTS: dict[str, Any] = {
    "metadata": FLEET["metadata"] | {"uid": "w1", "creationTimestamp": "2026-01-01T00:00:00Z"},
    "spec": {
        "fleetRef": {"name": "policy"},
        "version": "7",
        "source": {"path": "/weights/{version}"},
    },
}


class Watches:
    """kopf's registry, spoken to as kopf does."""

    def __init__(self) -> None:
        self.woken: list[tuple[str, str]] = []
        self.store = Store(self.woken.append)
        self.lists = 0
        self.shares = TimeShares()
        self.registry = build_registry(self.store, self.shares, self._note_list, lambda: False)
        self.handlers = {h.selector.any_name: h for h in self.registry._watching._handlers}

    def _note_list(self) -> None:
        self.lists += 1

    async def deliver(self, plural: str, kind: str | None, body: dict[str, Any]) -> None:
        fn: Any = self.handlers[plural].fn
        closed = read_closed(json.dumps(body).encode())
        await fn(body=kopf.Body(closed), type=kind, event={}, logger=None, memo=None)


@pytest.fixture
def watches() -> Watches:
    return Watches()


def test_both_resources_are_watched_in_our_group_and_version_and_nothing_else(watches):
    watched = {(h.selector.group, h.selector.version, p) for p, h in watches.handlers.items()}

    assert watched == {
        ("rlfleet.dev", "v1alpha1", "inferencefleets"),
        ("rlfleet.dev", "v1alpha1", "weightversions"),
    }


def test_nothing_keeps_state_on_the_objects_or_holds_them_back(watches):
    """Handlers of changes would set annotations and finalizers."""
    assert not watches.registry._changing._handlers
    assert not watches.registry._spawning._handlers
    assert build_settings().posting.enabled is False


def test_kopf_copies_no_object_to_look_for_changes():
    class Uncopied(dict[str, Any]):
        def __deepcopy__(self, memo: object) -> None:
            raise AssertionError("an object was copied")

    changes = build_settings().persistence.diffbase_storage
    body, patch = kopf.Body({"metadata": {}, "spec": Uncopied()}), kopf.Patch()
    essence = changes.build(body=body, extra_fields=())
    changes.store(body=body, patch=patch, essence=essence)

    assert (essence, changes.fetch(body=body), dict(patch)) == ({}, None, {})


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED"])
async def test_listed_and_added_objects_enter_the_store(watches, kind):
    """Objects of a list have the kind None."""
    await watches.deliver("inferencefleets", kind, FLEET)
    await watches.deliver("weightversions", kind, WEIGHTS)

    assert watches.store.fleet(KEY) is not None
    assert [w.spec.version for w in watches.store.weights_of(KEY)] == ["7"]
    assert watches.woken == [KEY, KEY]
    assert watches.lists == (2 if kind is None else 0), "a list may lack what is gone"


async def test_deleted_objects_leave_the_store(watches):
    for kind in ("ADDED", "DELETED"):
        await watches.deliver("inferencefleets", kind, FLEET)
        await watches.deliver("weightversions", kind, WEIGHTS)

    assert watches.store.fleet(KEY) is None
    assert watches.store.weights_of(KEY) == ()
    assert watches.woken == [KEY] * 4


async def test_a_late_word_of_a_fleet_that_is_gone_does_not_hide_its_successor(watches):
    successor = FLEET | {"metadata": FLEET["metadata"] | {"uid": "u2"}}
    await watches.deliver("inferencefleets", "ADDED", successor)
    await watches.deliver("inferencefleets", "DELETED", FLEET)
    record = watches.store.fleet(KEY)

    assert record is not None
    assert record.uid == "u2"


@pytest.mark.parametrize("plural", ["inferencefleets", "weightversions"])
async def test_an_unreadable_object_is_reported_and_the_known_one_stays(watches, plural, caplog):
    body = FLEET if plural == "inferencefleets" else WEIGHTS
    await watches.deliver(plural, "ADDED", body)
    await watches.deliver(plural, "MODIFIED", body | {"spec": {"from": "the future"}})

    assert "rl/policy cannot be read" in caplog.text
    assert watches.woken == [KEY, KEY], "its condition is written"
    known = watches.store.fleet(KEY) or watches.store.weights_of(KEY)
    assert known


async def test_an_object_of_a_list_waits_while_its_namespace_uses_more_time_than_its_share(watches):
    clock = asyncio.get_running_loop().time
    watches.shares.note("rl", 2.5, clock())
    watches.shares.note("other", 0.1, clock())
    wait_seconds = watches.shares.wait_seconds("rl", clock())
    began = clock()
    other = FLEET | {"metadata": FLEET["metadata"] | {"namespace": "other", "uid": "o1"}}
    late = asyncio.create_task(watches.deliver("inferencefleets", None, FLEET))
    await watches.deliver("inferencefleets", None, other)
    assert watches.store.fleet_keys() == [("other", "policy")]
    await late

    assert watches.store.fleet(KEY) is not None
    assert clock() - began >= wait_seconds > 0.1


async def test_the_time_of_an_object_counts_for_its_namespace(watches):
    clock = asyncio.get_running_loop().time
    spec = FLEET["spec"] | {"podOverlay": {"spec": {"volumes": [[]] * 15_000}}}
    assert not watches.shares.is_shared("other", clock())
    for _ in range(3):
        await watches.deliver("inferencefleets", None, FLEET | {"spec": spec})

    assert watches.shares.is_shared("other", clock())


def test_pages_become_smaller_until_they_have_one_object():
    settings = build_settings()
    sizes = []
    while kopf_watch.smaller_pages(settings):
        sizes.append(settings.watching.chunk_size)

    assert sizes == [250, 125, 62, 31, 15, 7, 3, 1]


async def test_kopf_starts_under_a_user_id_that_has_no_name(watches, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1000")

    async def end(tasks: Collection[asyncio.Task[None]], **_: object) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    monkeypatch.delenv("POD_ID", raising=False)
    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setattr("kopf._core.reactor.running.run_tasks", end)

    await kopf_watch.run(
        watches.store, ("rl",), asyncio.Event(), lambda: None, asyncio.Event(), watches.shares
    )
