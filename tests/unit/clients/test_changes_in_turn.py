"""Events of a watch wait for their namespace's share, one for each object, and none is lost at a resume."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from fleet_operator.clients.changes_in_turn import ChangesInTurn, Event
from fleet_operator.time_shares import TimeShares


def changed(namespace: str, name: str, version: int, kind: str = "MODIFIED") -> Event:
    metadata = {"namespace": namespace, "name": name, "uid": f"{namespace}/{name}"}
    return kind, {"metadata": metadata | {"resourceVersion": str(version)}, "is": version}


class Watch:
    """The events of a watch that begins at version 10, and what kopf has of it."""

    def __init__(self) -> None:
        self.shares = TimeShares()
        self.changes = ChangesInTurn(self.shares)
        self.changes.begin("10")
        self.reading: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.taken: list[tuple[str, str, Any]] = []
        """Type, name and content of each event."""
        self.resumes_at = "10"

    def hold_back(self, namespace: str) -> None:
        """Let a namespace have used more than its share, next to another one."""
        now = asyncio.get_running_loop().time()
        self.shares.note(namespace, 600.0, now)
        self.shares.note("another", 0.1, now)

    async def take(self) -> None:
        """Let kopf take all that it may."""
        while True:
            try:
                async with asyncio.timeout(0):
                    event = await self.changes.next(self.reading)
            except TimeoutError:
                return
            if event is None:
                self.taken.append(("end", "", None))
                return
            kind, found = event
            self.taken.append((kind, found["metadata"].get("name", ""), found.get("is")))
            self.resumes_at = found["metadata"].get("resourceVersion", self.resumes_at)

    def resume(self, version: str = "") -> None:
        """Let kopf begin another watch: behind its last event, or at the version of a list."""
        self.reading = asyncio.get_running_loop().create_future()
        self.changes.begin(version or self.resumes_at)

    def release(self) -> None:
        """Let all namespaces have used nothing."""
        self.shares = self.changes._shares = TimeShares()


@pytest.fixture
async def watch() -> Watch:
    return Watch()


async def test_of_an_object_that_changes_all_the_time_the_last_event_waits(watch: Watch) -> None:
    watch.hold_back("busy")
    for version in range(11, 1011):
        watch.changes.put(changed("busy", f"b{version % 4}", version))
    watch.changes.put(changed("quiet", "q", 1011))
    await watch.take()
    of_others = list(watch.taken)
    watch.release()
    await watch.take()

    assert of_others == [("MODIFIED", "q", 1011)]
    assert watch.taken[1:] == [("MODIFIED", f"b{v % 4}", v) for v in (1007, 1008, 1009, 1010)]


async def test_namespaces_take_turns(watch: Watch) -> None:
    for version in range(11, 111):
        watch.changes.put(changed("busy", f"b{version}", version))
    watch.changes.put(changed("quiet", "q", 111))
    await watch.take()

    assert "q" in [name for _, name, _ in watch.taken[:2]]


async def test_a_resumed_watch_brings_what_still_waits_and_nothing_else_again(watch: Watch) -> None:
    watch.hold_back("busy")
    watch.changes.put(changed("busy", "b", 11))
    watch.changes.put(changed("quiet", "q", 12))
    watch.changes.put(changed("busy", "c", 13))
    watch.changes.put(changed("quiet", "q", 14, "DELETED"))
    await watch.take()
    watch.changes.put(changed("busy", "b", 15))
    watch.reading.set_result(None)
    await watch.take()
    resumed_at = watch.resumes_at
    watch.resume()
    watch.changes.put(
        changed("busy", "b", 15)
    )  # the API server sends again what came after the last event
    watch.release()
    await watch.take()

    assert resumed_at == "14"
    assert watch.taken == [
        ("DELETED", "q", 14),
        ("end", "", None),
        ("MODIFIED", "b", 15),
        ("MODIFIED", "c", 13),
    ]


async def test_after_a_list_nothing_waits_any_more(watch: Watch) -> None:
    watch.hold_back("busy")
    watch.changes.put(changed("busy", "b", 11))
    await watch.take()
    watch.resume("20")
    watch.release()
    await watch.take()

    assert watch.taken == []


@pytest.mark.parametrize("is_taken", [False, True])
async def test_an_event_waits_again_if_kopf_did_not_take_it(watch: Watch, is_taken: bool) -> None:
    watch.changes.put(changed("a", "x", 11))
    event = await watch.changes.next(watch.reading)
    watch.resume("11" if is_taken else "10")
    await watch.take()

    assert event is not None
    assert watch.taken == ([] if is_taken else [("MODIFIED", "x", 11)])


async def test_the_text_of_a_deleted_object_does_not_wait(watch: Watch) -> None:
    watch.hold_back("busy")
    kind, found = changed("busy", "x", 11, "DELETED")
    watch.changes.put((kind, found | {"closed": "x" * 60_000}))

    assert "closed" not in str(watch.changes._waiting)


async def test_a_deletion_takes_the_place_of_a_change(watch: Watch) -> None:
    watch.changes.put(changed("a", "x", 11, "ADDED"))
    watch.changes.put(changed("a", "x", 12, "DELETED"))
    await watch.take()

    assert watch.taken == [("DELETED", "x", 12)]


async def test_an_event_that_waits_outlasts_a_bookmark(watch: Watch) -> None:
    watch.hold_back("busy")
    watch.changes.put(changed("busy", "b", 11))
    watch.changes.put(("BOOKMARK", {"metadata": {"resourceVersion": "20"}}))
    watch.changes.put(("ERROR", {"code": 410, "metadata": {}}))
    await watch.take()

    assert [kind for kind, _, _ in watch.taken] == ["BOOKMARK", "ERROR"]
    watch.resume("20")
    watch.release()
    await watch.take()
    assert watch.taken[2:] == [("MODIFIED", "b", 11)]


async def test_each_event_counts_for_its_namespace_by_its_size(watch: Watch) -> None:
    kind, found = changed("a", "large", 11)
    watch.changes.put((kind, found | {"closed": "x" * 1_000_000}))
    watch.changes.put(changed("b", "small", 12))
    await watch.take()

    assert watch.shares._used["a"] > 100 * watch.shares._used["b"] > 0
