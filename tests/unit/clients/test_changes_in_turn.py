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
        self.changes = ChangesInTurn("10", self.shares)
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
                    event = await self.changes.next()
            except TimeoutError:
                return
            if event is None:
                self.taken.append(("end", "", None))
                return
            kind, found = event
            self.taken.append((kind, found["metadata"].get("name", ""), found.get("is")))
            self.resumes_at = found["metadata"].get("resourceVersion", self.resumes_at)


@pytest.fixture
def watch() -> Watch:
    return Watch()


async def test_of_an_object_that_changes_all_the_time_the_last_event_waits(watch: Watch) -> None:
    watch.hold_back("busy")
    for version in range(11, 1011):
        watch.changes.put(changed("busy", f"b{version % 4}", version))
    watch.changes.put(changed("quiet", "q", 1011))
    await watch.take()
    of_others = list(watch.taken)
    watch.shares = watch.changes._shares = TimeShares()
    await watch.take()

    assert of_others == [("MODIFIED", "q", 1011)]
    assert watch.taken[1:] == [("MODIFIED", f"b{v % 4}", v) for v in (1007, 1008, 1009, 1010)]


async def test_namespaces_take_turns(watch: Watch) -> None:
    for version in range(11, 111):
        watch.changes.put(changed("busy", f"b{version}", version))
    watch.changes.put(changed("quiet", "q", 111))
    await watch.take()

    assert "q" in [name for _, name, _ in watch.taken[:2]]


async def test_a_resumed_watch_brings_what_still_waits(watch: Watch) -> None:
    watch.hold_back("busy")
    watch.changes.put(changed("quiet", "q", 11))
    watch.changes.put(changed("busy", "b", 12))
    watch.changes.put(changed("busy", "c", 13))
    watch.changes.put(changed("quiet", "q", 14))
    watch.changes.put(changed("busy", "b", 15))
    await watch.take()
    before_c = watch.resumes_at
    watch.changes.put(changed("busy", "c", 16))
    watch.changes.put(changed("quiet", "q", 17))
    await watch.take()
    watch.changes.end()
    await watch.take()

    assert [content for _, _, content in watch.taken] == [14, 17, None]
    assert (before_c, watch.resumes_at) == ("12", "14"), "the versions before c and b"


async def test_a_deletion_takes_the_place_of_a_change(watch: Watch) -> None:
    watch.changes.put(changed("a", "x", 11, "ADDED"))
    watch.changes.put(changed("a", "x", 12, "DELETED"))
    await watch.take()

    assert watch.taken == [("DELETED", "x", 12)]


async def test_a_bookmark_passes_no_event_that_waits(watch: Watch) -> None:
    watch.hold_back("busy")
    watch.changes.put(changed("busy", "b", 11))
    watch.changes.put(("BOOKMARK", {"metadata": {"resourceVersion": "20"}}))
    watch.changes.put(("ERROR", {"code": 410, "metadata": {}}))
    await watch.take()

    assert [kind for kind, _, _ in watch.taken] == ["BOOKMARK", "ERROR"]
    assert watch.resumes_at == "10"


async def test_each_event_counts_for_its_namespace_by_its_size(watch: Watch) -> None:
    kind, found = changed("a", "large", 11)
    watch.changes.put((kind, found | {"closed": "x" * 1_000_000}))
    watch.changes.put(changed("b", "small", 12))
    await watch.take()

    assert watch.shares._used["a"] > 100 * watch.shares._used["b"] > 0
