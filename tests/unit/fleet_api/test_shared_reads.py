"""Requests for one object share reads of it, and none gets an answer from before it came."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.support.fake_cluster import FakeCluster

from fleet_api.fleets import Fleets
from fleet_api.shared_calls import SharedReads
from fleet_operator.places import Places
from rlfleet.ports import Kind

REQUESTS = 40


class Store:
    """A value that is read as it is at the begin of the read. `go_on`: lets one read end."""

    def __init__(self) -> None:
        self.value = 0
        self.reads = 0
        self.go_on = asyncio.Semaphore(0)

    async def read(self) -> int:
        self.reads += 1
        found = self.value
        await self.go_on.acquire()
        if found < 0:
            raise ConnectionError
        return found


async def settled() -> None:
    """Let all tasks come as far as they can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_those_that_come_during_a_read_share_one_that_begins_after_them():
    store, reads = Store(), SharedReads[str, int]()
    first = asyncio.ensure_future(reads.join("a", store.read))
    await settled()
    store.value = 1
    others = [asyncio.ensure_future(reads.join("a", store.read)) for _ in range(REQUESTS)]
    other_key = asyncio.ensure_future(reads.join("b", store.read))
    await settled()
    others[0].cancel()
    at_once = store.reads
    store.value = 2
    for _ in range(3):
        store.go_on.release()
    found = await asyncio.gather(first, *others[1:], other_key)

    assert found == [0, *[2] * (REQUESTS - 1), 1]
    assert (at_once, store.reads) == (2, 3)


async def test_an_error_is_that_of_all_and_of_none_after_them():
    store, reads = Store(), SharedReads[str, int]()
    store.value = -1
    store.go_on = asyncio.Semaphore(4)
    failed = await asyncio.gather(
        *(reads.join("a", store.read) for _ in range(3)), return_exceptions=True
    )
    store.value = 1

    assert [type(one) for one in failed] == [ConnectionError] * 3
    assert await reads.join("a", store.read) == 1


async def test_any_number_of_readers_of_a_fleet_cost_the_api_server_two_reads_of_each_object(
    monkeypatch,
):
    cluster, go_on, asked = FakeCluster(), asyncio.Event(), Counter[str]()
    fleets, get = Fleets(cluster, Places(8)), cluster.objects.get

    async def slow(kind: Kind, name: str) -> Any:
        asked[kind.value] += 1
        await go_on.wait()
        return await get(kind, name)

    async def weights() -> None:
        assert await fleets.weights(await fleets.fleet("rl", "policy")) is not None

    monkeypatch.setattr(cluster.objects, "get", slow)
    first = asyncio.ensure_future(weights())
    await settled()
    others = [asyncio.ensure_future(weights()) for _ in range(REQUESTS)]
    await settled()
    go_on.set()
    await asyncio.gather(first, *others)

    assert asked == {"inferencefleets": 2, "weightversions": 2}
