"""Strangers that open connections, and send no whole request, cost the RL API little."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvloop
from aiohttp import web
from tests.support.left_behind import leave_behind
from tests.unit.fleet_api.test_tls import issue

from fleet_api import listeners
from fleet_api.calls import AUDITED, Audited
from fleet_api.settings import Settings
from fleet_worker.http import heads
from free_ports import free_port

HEADERS = b"".join(b"X-%d: %s\r\n" % (n, b"a" * 8000) for n in range(100))
GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """An application that answers at once, or `/slow` when `go_on` is set, with the length of the body. It refuses
    `/refused` without a look at the body.
    """

    def __init__(self) -> None:
        self.port = free_port()
        self.go_on = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.refused = 0
        self._writers: list[asyncio.StreamWriter] = []

    def note_refused(self) -> None:
        self.refused += 1

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async def answer(request: web.Request) -> web.Response:
            if request.path == "/refused":
                return web.Response(status=401)
            if request.path == "/refused-late":
                request[AUDITED] = Audited(reason="Unauthorized")
                await self.go_on.wait()
            if request.path == "/slow":
                self.begun.release()
                await self.go_on.wait()
            return web.Response(text=str(len(await request.read())))

        app = web.Application()
        app.router.add_route("*", "/{path:.*}", answer)
        settings = Settings(host="127.0.0.1", port=self.port)
        others = (web.Application(), web.Application())
        async with listeners.listening(app, *others, settings, on_refused=self.note_refused):
            yield
            for writer in self._writers:
                writer.close()

    async def open(self, sent: bytes) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def answers(self) -> bool:
        reader, _ = await self.open(GET + b"Connection: close\r\n\r\n")
        return b" 200 " in await asyncio.wait_for(reader.readline(), 10)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    made = Served()
    async with made.running():
        yield made


async def reached_end(reader: asyncio.StreamReader) -> bool:
    try:
        await reader.read()
    except ConnectionError:
        return True
    return reader.at_eof()


async def has_ended(connection: Connection) -> bool:
    reader, _ = connection
    try:
        return not await asyncio.wait_for(reader.read(1), 10)
    except ConnectionError:
        return True


async def test_the_longest_heads_end_beyond_a_limit_of_all(monkeypatch):
    monkeypatch.setattr(heads, "MAX_BYTES", 2 * len(HEADERS) + 100_000)
    served = Served()
    async with served.running():
        short = await served.open(GET)
        long = [await served.open(GET + HEADERS) for _ in range(3)]
        ended = [asyncio.create_task(has_ended(each)) for each in long]
        done, _ = await asyncio.wait(ended, timeout=10, return_when=asyncio.FIRST_COMPLETED)
        assert [task.result() for task in done] == [True]
        assert await served.answers()
        short[1].write(b"\r\n")
        assert b" 200 " in await asyncio.wait_for(short[0].readline(), 10)
        for task in ended:
            task.cancel()


async def test_strangers_with_many_short_heads_end_no_request_that_comes_whole(monkeypatch):
    """Its body is in the same bytes as its head, and longer than any of the strangers' heads."""
    monkeypatch.setattr(heads, "MAX_BYTES", 200_000)
    served = Served()
    async with served.running():
        for _ in range(19):
            await served.open(GET + HEADERS[:10_000])
        head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n"
        for _ in range(3):
            reader, _ = await served.open(head + b"x" * 50_000)
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)


def test_a_head_that_came_while_the_loop_was_busy_is_read_before_its_time_ends(monkeypatch):
    monkeypatch.setattr(heads, "SECONDS", 0.2)

    async def play() -> None:
        served = Served()
        async with served.running():
            reader, writer = await served.open(GET)
            assert await served.answers()
            writer.write(b"\r\n")
            time.sleep(0.4)  # noqa: ASYNC251 - the loop is busy
            assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)

    uvloop.run(play())


@pytest.mark.parametrize("first", [b"", GET], ids=["none", "a part"])
async def test_a_head_that_does_not_come_ends_its_connection(served, monkeypatch, first):
    monkeypatch.setattr(heads, "SECONDS", 0.2)
    assert await has_ended(await served.open(first))


async def test_the_second_head_of_a_connection_has_the_same_limits(monkeypatch):
    monkeypatch.setattr(heads, "MAX_BYTES", 100_000)
    served = Served()
    async with served.running():
        for first in (
            b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            reader, writer = await served.open(first + GET + HEADERS[:90_000])
            await served.answers()
            writer.write(HEADERS[90_000:180_000])
            assert await asyncio.wait_for(reached_end(reader), 10)
        monkeypatch.setattr(heads, "SECONDS", 0.2)
        reader, writer = await served.open(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)
        writer.write(GET)
        assert await asyncio.wait_for(reached_end(reader), 10)


async def test_a_request_that_runs_and_a_body_that_comes_slowly_do_not_end(served, monkeypatch):
    monkeypatch.setattr(heads, "SECONDS", 0.1)
    monkeypatch.setattr(heads, "MAX_BYTES", 10_000)
    head = b"PUT /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n"
    slow_body, _ = body = await served.open(head % b"" + b"x" * 100_000)
    running, _ = await served.open(head % b"slow" + b"x" * 400_000)
    for _ in range(3):
        await asyncio.sleep(0.1)
        body[1].write(b"x" * 100_000)
    served.go_on.set()
    for reader in (slow_body, running):
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)


async def test_the_rest_of_a_refused_body_is_not_a_head(monkeypatch):
    monkeypatch.setattr(heads, "SECONDS", 0.2)
    monkeypatch.setattr(heads, "MAX_BYTES", 10_000)
    served = Served()
    async with served.running():
        head = b"PUT /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n"
        reader, writer = await served.open(head)
        assert b" 401 " in await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        for _ in range(4):
            await asyncio.sleep(0.1)
            writer.write(b"x" * 100_000)
        writer.write(GET + b"\r\n")
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)


async def test_requests_with_bodies_in_chunks_do_not_add_up(monkeypatch):
    monkeypatch.setattr(heads, "MAX_BYTES", 100_000)
    served = Served()
    async with served.running():
        reader, writer = await served.open(b"")
        for _ in range(8):
            head = b"PUT / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head + b"C350\r\n" + b"x" * 50_000 + b"\r\n0\r\n\r\n")
            reply = await asyncio.wait_for(reader.readuntil(b"50000"), 10)
            assert reply.startswith(b"HTTP/1.1 200 ")


async def test_the_oldest_idle_connection_gives_way_and_running_requests_stay(served, monkeypatch):
    monkeypatch.setattr(heads, "MAX_CONNECTIONS", 3)
    running, _ = await served.open(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
    assert await served.answers()
    idle = [await served.open(GET) for _ in range(4)]
    assert [await has_ended(each) for each in idle[:2]] == [True, True]
    served.go_on.set()
    assert b" 200 " in await asyncio.wait_for(running.readline(), 10)


async def test_requests_that_wait_for_their_refusal_give_way(served, monkeypatch):
    """A stranger could hold all connections with them."""
    monkeypatch.setattr(heads, "MAX_CONNECTIONS", 3)
    running, _ = await served.open(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
    refused = b"GET /refused-late HTTP/1.1\r\nHost: a\r\n\r\n"
    waiting = [await served.open(refused) for _ in range(4)]
    assert [await has_ended(each) for each in waiting[:2]] == [True, True]
    assert await served.answers()
    served.go_on.set()
    assert b" 200 " in await asyncio.wait_for(running.readline(), 10)


async def test_new_connections_end_while_all_others_have_requests_and_are_counted(
    served, monkeypatch, caplog
):
    monkeypatch.setattr(heads, "MAX_CONNECTIONS", 2)
    slow = b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n"
    running = [await served.open(slow) for _ in range(2)]
    for _ in running:
        await asyncio.wait_for(served.begun.acquire(), 10)
    for _ in range(3):
        assert await has_ended(await served.open(GET + b"\r\n"))
    lines = [r for r in caplog.records if getattr(r, "event", "") == "connection_refused"]
    assert (served.refused, len(lines)) == (3, 1)
    served.go_on.set()
    for reader, _ in running:
        assert b" 200 " in await asyncio.wait_for(reader.readline(), 10)


async def test_a_handshake_that_does_not_come_ends_its_connection(monkeypatch, tmp_path):
    monkeypatch.setattr(listeners, "HANDSHAKE_SECONDS", 0.2)
    certificate, key = issue(tmp_path, "localhost")
    port = free_port()
    settings = Settings(host="127.0.0.1", port=port, tls_cert=certificate, tls_key=key)
    async with listeners.listening(*(web.Application() for _ in range(3)), settings):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reached_end(reader), 10)
        writer.close()


async def test_connections_without_a_handshake_take_no_place_of_others(monkeypatch, tmp_path):
    monkeypatch.setattr(heads, "MAX_CONNECTIONS", 3)
    certificate, key = issue(tmp_path, "localhost")
    port = free_port()
    settings = Settings(host="127.0.0.1", port=port, tls_cert=certificate, tls_key=key)
    tls = ssl.create_default_context(cafile=str(certificate))
    async with listeners.listening(*(web.Application() for _ in range(3)), settings):
        idle = await asyncio.open_connection("localhost", port, ssl=tls)
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"no handshake\r\n")
            assert await asyncio.wait_for(reached_end(reader), 10)
            writer.close()
        reader, writer = idle
        writer.write(GET + b"\r\n")
        assert b" 404 " in await asyncio.wait_for(reader.readline(), 10)
        writer.close()


async def test_a_request_that_is_not_http_leaves_nothing_for_pythons_collector(served):
    sent = GET + b"X: " + b"a" * 60_000 + b"\r\n"
    await leave_behind(served.port, sent, times=1)
    assert await leave_behind(served.port, sent, times=20) < 4 * len(sent)
