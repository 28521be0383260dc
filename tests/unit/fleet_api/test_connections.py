"""Connections to a fleet, which its Service spreads over the workers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from aiohttp import ClientError, ThreadedResolver, web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import READER
from tests.unit.fleet_api.conftest import Api

from fleet_api import connections
from fleet_api.connections import Connections

CHAT = "/v1/chat/completions"


class Workers:
    """A Service: each connection reaches the next ready worker, and stays there."""

    def __init__(self) -> None:
        self.ready = ["policy-0"]
        self.connections: dict[Any, str] = {}
        self.go_on = asyncio.Event()
        app = web.Application()
        app.router.add_post(CHAT, self._stream)
        app.router.add_post("/{path:.*}", self._answer)
        self.server = TestServer(app)

    def _worker_of(self, request: web.Request) -> str:
        number = len(self.connections)
        return self.connections.setdefault(request.transport, self.ready[number % len(self.ready)])

    async def _answer(self, request: web.Request) -> web.Response:
        return web.json_response(self._worker_of(request))

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        self._worker_of(request)
        reply = web.StreamResponse()
        await reply.prepare(request)
        await reply.write(b"one\n")
        await self.go_on.wait()
        await reply.write(b"two\n")
        return reply


@pytest.fixture
async def workers() -> AsyncIterator[Workers]:
    made = Workers()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
def upstream(workers: Workers) -> str:
    return str(workers.server.make_url("")).rstrip("/")


async def answering(api: Api) -> Any:
    return (await api.send("POST", "/v1/completions", json={}))[1]


async def test_requests_share_a_connection(api, workers):
    for _ in range(5):
        await answering(api)

    assert len(workers.connections) == 1


async def test_a_worker_that_joins_gets_its_share_although_no_connection_is_idle(
    api, workers, monkeypatch
):
    await answering(api)
    workers.ready.append("policy-1")
    monkeypatch.setattr(connections, "KEPT_SECONDS", -1.0)

    assert [await answering(api) for _ in range(4)] == ["policy-1", "policy-0"] * 2


async def test_a_reply_that_has_begun_outlives_the_exchange_of_its_connection(
    api, workers, monkeypatch
):
    headers = {"Authorization": f"Bearer {READER}"}
    async with api.http.post(f"/fleets/rl/policy{CHAT}", json={}, headers=headers) as reply:
        assert await reply.content.readline() == b"one\n"
        monkeypatch.setattr(connections, "KEPT_SECONDS", -1.0)
        await answering(api)
        workers.go_on.set()
        assert await reply.content.read() == b"two\n"


async def test_connections_end_with_the_last_reply_that_comes_over_them(monkeypatch):
    made = Connections(ThreadedResolver())
    async with AsyncExitStack() as first:
        kept = await first.enter_async_context(made.kept())
        monkeypatch.setattr(connections, "KEPT_SECONDS", -1.0)
        async with made.kept() as exchanged:
            assert exchanged is not kept
            assert not kept.closed
    assert kept.closed
    assert not exchanged.closed
    await made.close()
    assert exchanged.closed


class FakeFlood:
    """A worker that sends messages without an end: before its answer, or once nothing waits for any more."""

    def __init__(self, interim: bytes) -> None:
        self.interim = interim
        self.ended = asyncio.Event()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"{}")
            if not self.interim:
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            while True:
                writer.write((self.interim or b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n") * 9)
                await writer.drain()
        except OSError:
            self.ended.set()
        finally:
            writer.close()


@pytest.mark.parametrize("interim", [b"HTTP/1.1 102 A\r\n\r\n", b""], ids=["before", "after"])
async def test_a_connection_ends_with_messages_that_no_request_waits_for(interim):
    flood = FakeFlood(interim)
    server = await asyncio.start_server(flood.answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(10), connections.untrusted_session() as http:
        if interim:
            with pytest.raises(ClientError):
                await http.post(url, data=b"{}")
        else:
            async with http.post(url, data=b"{}") as reply:
                assert await reply.read() == b"{}"
        await flood.ended.wait()
    server.close()


async def test_a_request_never_gets_an_answer_that_came_before_it():
    came, closed = asyncio.Event(), asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        await came.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nstale")
        await reader.read()  # until the client has closed its end
        came.clear()
        closed.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(10), connections.untrusted_session() as http:
        for _ in range(2):
            async with http.post(url, data=b"{}") as reply:
                assert await reply.read() == b"{}"
            closed.clear()
            came.set()
            await closed.wait()
    server.close()


async def test_an_answer_in_another_protocol_does_not_count_and_ends_its_connection():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 101 A\r\n\r\n")
        await reader.read()  # until the client has closed its end
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with asyncio.timeout(10), connections.untrusted_session() as http:
        with pytest.raises(ClientError):
            await http.post(url, data=b"{}")
    server.close()


async def test_interim_answers_of_a_worker_are_skipped():
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(3):
            await reader.readuntil(b"{}")
            writer.write(b"HTTP/1.1 102 A\r\n\r\n" * 3)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    async with connections.untrusted_session() as http:
        for _ in range(3):
            async with http.post(url, data=b"{}") as reply:
                assert await reply.read() == b"{}"
    server.close()
