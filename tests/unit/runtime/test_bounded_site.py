"""A port that strangers reach has a bounded number of connections, and answers others next to them."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import Mock

import pytest
from aiohttp import web
from tests.support import virtual_time
from tests.support.left_behind import leave_behind
from tests.support.waiting import eventually_async

from fleet_operator.own_ports.bounded_site import (
    BURST_SECONDS,
    LONGEST_REST_SECONDS,
    OWN_PLACES,
    OWN_RATES,
    PROBES,
    BoundedSite,
    Bounds,
)
from free_ports import free_port

FEW = Bounds(connections=6, per_address=3, rest_seconds=0, per_second=1000, seconds=30)
REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


class Served:
    """A port whose requests are counted. `hold`: whether a reply waits for `go`."""

    def __init__(self) -> None:
        self.port = free_port()
        self.requests = 0
        self.running = self.most_running = 0
        self.go = asyncio.Event()
        self.go.set()

    async def answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        return web.Response(text="ok")


@asynccontextmanager
async def serving(bounds: Bounds) -> AsyncIterator[Served]:
    served = Served()
    app = web.Application()
    app.router.add_get("/", served.answer)
    site = await BoundedSite.start(app, served.port, bounds)
    try:
        yield served
    finally:
        await site.cleanup()


async def connect(port: int, source: str = "127.0.0.1"):
    return await asyncio.open_connection("127.0.0.1", port, local_addr=(source, 0))


async def read(port: int, source: str = "127.0.0.1") -> bytes:
    """The whole reply on a connection of its own; empty if it was closed before."""
    reader, writer = await connect(port, source)
    try:
        writer.write(REQUEST)
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_a_connection_carries_one_request():
    async with serving(FEW) as served:
        reader, writer = await connect(served.port)
        writer.write(REQUEST * 5)
        reply = await asyncio.wait_for(reader.read(), 10)
        writer.close()

    assert reply.count(b"HTTP/1.1 200") == 1
    assert b"Connection: close" in reply
    assert served.requests == 1


async def test_an_address_has_a_part_of_the_connections_and_others_are_answered():
    async with serving(FEW) as served:
        served.go.clear()
        waiting = [asyncio.create_task(read(served.port)) for _ in range(20)]
        await until(lambda: served.running == FEW.per_address)
        await until(lambda: sum(t.done() for t in waiting) == 20 - FEW.per_address)
        other = asyncio.create_task(read(served.port, "127.0.0.2"))
        await until(lambda: served.running == FEW.per_address + 1)
        served.go.set()

        assert b"200" in await other
        answered = [b"200" in reply for reply in await asyncio.gather(*waiting)]
        assert sum(answered) == FEW.per_address
        async with asyncio.timeout(10):  # ended connections count no more, after a rest
            while b"200" not in await read(served.port):
                pass


async def test_the_oldest_connection_gives_way_where_all_are_in_use():
    async with serving(FEW) as served:
        idle = [await connect(served.port, f"127.0.0.{n}") for n in (1, 1, 1, 2, 2, 2)]
        for n in (3, 4):
            assert b"200" in await read(served.port, f"127.0.0.{n}")
        ended = await asyncio.wait_for(idle[0][0].read(), 10)
        served.go.clear()
        for _, writer in idle:
            writer.close()

    assert ended == b""
    assert served.most_running == 1


async def test_a_connection_ends_after_its_time():
    bounds = replace(FEW, seconds=0.3)
    async with serving(bounds) as served:
        reader, writer = await connect(served.port)
        began = time.monotonic()
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert time.monotonic() - began < 5
        assert served.requests == 0


async def test_no_more_connections_are_served_a_second_than_the_bound():
    bounds = Bounds(connections=99, per_address=99, rest_seconds=30, per_second=20, seconds=30)
    async with serving(bounds) as served:
        began = time.monotonic()
        replies = [await read(served.port) for _ in range(60)]
        seconds = time.monotonic() - began
        other = await read(served.port, "127.0.0.2")

    assert 2 < sum(b"200" in reply for reply in replies) <= 2 + 20 * (seconds + BURST_SECONDS)
    assert b"200" in other


async def test_many_addresses_are_served_at_a_multiple_of_the_rate_of_all():
    bounds = Bounds(connections=99, per_address=99, rest_seconds=0.01, per_second=20, seconds=30)
    addresses, served_at = [f"127.0.0.{n}" for n in range(2, 22)], list[float]()
    async with serving(bounds) as served:
        began = time.monotonic()
        for address in addresses * 20:
            if b"200" in await read(served.port, address):
                served_at.append(time.monotonic() - began)
        other = await read(served.port, "127.0.0.99")

    # The first places of all rest for a short time, since few others do.
    at_rate = served_at[-1] * bounds.per_second
    assert len(served_at) <= OWN_PLACES * (len(addresses) + at_rate) + len(addresses)
    assert b"200" in other


class FakeAccepted:
    """A socket that was accepted."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def settimeout(self, _: float) -> None:
        """Nothing waits for it."""


@dataclass(eq=False)
class FakeConnection:
    address: str


class Crowd(BoundedSite):
    """The rule alone, without a network, for a clock that jumps: each connection takes 5 ms."""

    def __init__(self) -> None:
        super().__init__(Mock(), [], PROBES)
        self.served = 0
        self.most_addresses = 0

    async def _take(self, accepted: Any, address: str) -> None:
        connection: Any = FakeConnection(address)
        self._open[connection] = None
        self._by_address[address] += 1
        self.served += 1
        self.most_addresses = max(self.most_addresses, len(self._by_address))
        asyncio.get_running_loop().call_later(0.005, self.forget, connection)

    async def serves(self, address: str) -> bool:
        accepted: Any = FakeAccepted()
        await self._admit(accepted, (address,))
        return not accepted.closed

    async def probes(self, every: float, seconds: float) -> str:
        """Probes of a kubelet: a point for each answer, and F for none."""
        seen = ""
        until = virtual_time.now() + seconds
        while virtual_time.now() < until:
            seen += "." if await self.serves("node") else "F"
            await asyncio.sleep(every)
        return seen

    async def next_to(self, asks: Iterator[str], per_second: float) -> tuple[str, str]:
        """The probes of the operator's chart, for a minute: of `/readyz` and of `/livez`."""

        async def flood() -> None:
            for address in asks:
                await self.serves(address)
                await asyncio.sleep(1 / per_second)

        flooding = asyncio.create_task(flood())
        await asyncio.sleep(10)
        seen = await asyncio.gather(self.probes(2.01, 60), self.probes(10.03, 60))
        flooding.cancel()
        return seen[0], seen[1]


def test_new_addresses_use_up_no_own_place_and_are_forgotten():
    """Places rested for minutes, and a kubelet ended the operator after three probes without an answer."""

    async def story() -> tuple[str, str]:
        assert await crowd.serves("node")
        return await crowd.next_to((f"2001:db8::{n:x}" for n in itertools.count()), 600)

    crowd = Crowd()
    assert [set(seen) for seen in virtual_time.run(story())] == [{"."}, {"."}]
    assert crowd.most_addresses <= LONGEST_REST_SECONDS * PROBES.per_second
    assert crowd.served <= 71 * PROBES.per_second


def test_a_new_kubelet_is_answered_next_to_known_addresses_that_never_stop():
    pods = random.Random(1)  # noqa: S311 - a test may repeat

    async def story() -> tuple[str, str]:
        return await crowd.next_to((f"pod-{pods.randrange(800)}" for _ in itertools.count()), 2000)

    crowd = Crowd()
    for seen in virtual_time.run(story()):
        assert "FF" not in seen
        assert seen.count("F") <= len(seen) / 4
    assert crowd.served <= 71 * (1 + OWN_RATES) * PROBES.per_second


async def test_the_place_of_an_ended_connection_rests():
    async with serving(replace(FEW, rest_seconds=30)) as served:
        replies = [await read(served.port) for _ in range(FEW.per_address + 2)]
        other = await read(served.port, "127.0.0.2")

    assert [b"200" in reply for reply in replies] == [True] * FEW.per_address + [False] * 2
    assert b"200" in other


async def test_a_request_that_is_not_http_leaves_no_line(caplog):
    async with serving(FEW) as served:
        reader, writer = await connect(served.port)
        writer.write(b"GET /a-secret a HTTP/9.x\r\n\r\n")
        assert b" 400 " in await asyncio.wait_for(reader.read(), 10)
        writer.close()

    assert "a-secret" not in caplog.text
    assert [line for line in caplog.records if line.levelname == "ERROR"] == []


async def test_a_port_in_use_is_an_error():
    async with serving(FEW) as served:
        with pytest.raises(OSError, match="in use"):
            await BoundedSite.start(web.Application(), served.port, FEW)


async def until(condition: Callable[[], bool]) -> None:
    async def holds() -> bool:
        return condition()

    await eventually_async(holds, within_seconds=10)


@pytest.mark.parametrize(
    "sent",
    [REQUEST[:-2] + b"X: " + b"a" * 60_000 + b"\r\n", b"\xff" * 60_000],
    ids=["a long header", "no HTTP"],
)
async def test_a_request_that_is_not_http_leaves_nothing_for_pythons_collector(sent):
    async with serving(replace(FEW, per_address=1000)) as served:
        await leave_behind(served.port, sent, times=1)
        assert await leave_behind(served.port, sent, times=20) < 4 * len(sent)
