"""A watch shows each state once, over everything that can end it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.fake_objects import FakeObjects
from tests.support.present import present

from rlfleet import AsyncWeights, Event, NotFound, Unavailable, Weights
from rlfleet.ports import Change, GoneError

Shown = list[tuple[str, str, str]]


def blocking(objects: FakeObjects, count: int) -> Shown:
    events: Iterator[Event] = Weights("policy", objects=objects).watch()
    return [shown_of(event) for event in islice(events, count)]


def on_a_loop(objects: FakeObjects, count: int) -> Shown:
    async def collect() -> Shown:
        found: Shown = []
        events = AsyncWeights("policy", objects=objects).watch()
        async for event in events:
            found.append(shown_of(event))
            if len(found) == count:
                break
        await events.aclose()
        return found

    return asyncio.run(collect())


def shown_of(event: Event) -> tuple[str, str, str]:
    return event.type, event.weights.spec.version, event.weights.status.phase


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "asyncio"])
def watch(request: pytest.FixtureRequest) -> Callable[[FakeObjects, int], Shown]:
    return request.param


def test_a_watch_shows_the_present_state_and_then_each_change(watch):
    objects = FakeObjects(obeys=False)
    objects.script.extend([lambda: objects.desire(version="43"), objects.apply])

    assert watch(objects, 3) == [
        ("ADDED", "42", "Applied"),
        ("MODIFIED", "43", "Applied"),
        ("MODIFIED", "43", "Applied"),
    ]


def test_a_watch_that_ends_continues_from_the_last_resource_version(watch):
    objects = FakeObjects(obeys=False)

    def cut() -> None:
        raise Unavailable("connection reset")

    objects.script.extend([lambda: objects.desire(version="43"), cut])
    objects.script.append(lambda: objects.desire(version="44"))

    assert [version for _, version, _ in watch(objects, 3)] == ["42", "43", "44"]
    watches = [r for r, _ in objects.requests if r.startswith("watch")]
    first, second = (int(r.rpartition(" ")[2]) for r in watches)
    assert second == first + 1
    assert [r for r, _ in objects.requests].count("list weightversions") == 1


def test_a_bookmark_moves_the_resource_version_and_is_not_shown(watch):
    objects = FakeObjects(obeys=False)
    bookmark = {"metadata": {"name": "policy", "resourceVersion": "500"}}

    def mark() -> None:
        objects._version = 500
        objects._changes.append((500, "BOOKMARK", bookmark))

    def cut() -> None:
        raise Unavailable("connection reset")

    objects.script.extend([mark, cut, lambda: objects.desire(version="43")])

    assert [version for _, version, _ in watch(objects, 2)] == ["42", "43"]
    assert objects.requests[-1][0] == "watch weightversions 500"


def test_an_expired_watch_lists_again_and_shows_the_changes(watch):
    objects = FakeObjects(obeys=False)

    def miss() -> None:
        objects.desire(version="43")
        objects.expire()

    objects.script.append(miss)
    objects.script.append(lambda: objects.desire(version="44"))

    assert [version for _, version, _ in watch(objects, 3)] == ["42", "43", "44"]


def test_an_expired_watch_without_changes_shows_nothing_twice(watch):
    objects = FakeObjects(obeys=False)
    objects.script.extend([objects.expire, lambda: objects.desire(version="43")])

    assert [version for _, version, _ in watch(objects, 2)] == ["42", "43"]


def test_a_deleted_and_recreated_object_is_shown(watch):
    objects = FakeObjects(obeys=False)
    spec = present(objects.weights)["spec"]
    objects.script.extend([objects.delete, lambda: objects.make(spec | {"version": "1"}, "uid-2")])

    shown = watch(objects, 3)

    assert [(kind, version) for kind, version, _ in shown] == [
        ("ADDED", "42"),
        ("DELETED", "42"),
        ("ADDED", "1"),
    ]


def test_an_object_replaced_during_a_gap_is_shown_as_deleted_and_added(watch):
    objects = FakeObjects(obeys=False)
    spec = present(objects.weights)["spec"]

    def gap() -> None:
        objects.delete()
        objects.make(spec, "uid-2")
        objects.expire()

    objects.script.append(gap)

    assert [kind for kind, _, _ in watch(objects, 3)] == ["ADDED", "DELETED", "ADDED"]


def test_an_object_deleted_during_a_gap_is_shown_as_deleted_once(watch):
    objects = FakeObjects(obeys=False)
    spec = present(objects.weights)["spec"]

    def gap() -> None:
        objects.delete()
        objects.expire()

    for first in ([gap], [objects.delete]):
        objects.script.extend([*first, objects.expire, partial(objects.make, spec, "uid-2")])
        assert [kind for kind, _, _ in watch(objects, 3)] == ["ADDED", "DELETED", "ADDED"]


def test_a_missing_object_is_an_error(watch):
    objects = FakeObjects()
    objects.delete()

    with pytest.raises(NotFound, match="create_for"):
        watch(objects, 1)


def test_a_server_that_ends_every_watch_is_called_with_pauses(watch):
    objects = FakeObjects(obeys=False)

    async def ends(*_: object) -> Iterator[Change]:
        objects.requests.append(("watch", None))
        return
        yield

    objects.watch = ends
    before = objects.now

    with pytest.raises(Unavailable, match="ends each watch at once"):
        watch(objects, 2)
    assert objects.now - before == pytest.approx(60)
    assert len(objects.requests) < 40


def test_a_server_whose_versions_always_expire_is_called_with_pauses(watch):
    objects = FakeObjects(obeys=False)

    async def expired(*_: object) -> Iterator[Change]:
        raise GoneError("too old")
        yield

    objects.watch = expired

    with pytest.raises(Unavailable, match="too old"):
        watch(objects, 2)
    assert len(objects.requests) < 40


ACTS = st.lists(st.sampled_from(["desire", "apply", "cut", "expire", "silence"]), max_size=12)


@given(ACTS)
def test_the_last_state_is_shown_despite_any_failures_of_the_watch(acts):
    objects = FakeObjects(obeys=False)
    number = 42

    def desire() -> None:
        nonlocal number
        number += 1
        objects.desire(version=str(number))

    def cut() -> None:
        raise Unavailable("connection reset")

    def miss() -> None:
        desire()
        objects.expire()

    played = {"desire": desire, "apply": objects.apply, "cut": cut, "expire": miss}
    played["silence"] = lambda: None
    objects.script.extend(played[act] for act in acts)
    objects.script.append(lambda: objects.desire(version="last"))
    seen: Shown = []

    for event in Weights("policy", objects=objects).watch():
        seen.append(shown_of(event))
        if event.weights.spec.version == "last":
            break

    assert seen[0] == ("ADDED", "42", "Applied")
    versions = [v for _, v, _ in seen[:-1]]
    assert versions == sorted(versions, key=int)
    assert str(number) in versions
