"""The client's connections: one request, exactly one answer, and nothing that mixes two of them up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fleet_operator.adapters.http_client import (
    MAX_HEAD_BYTES,
    Answer,
    Connection,
    HttpClient,
    HttpError,
)

ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
MOST = 1000
FUZZED = 3000
"""Damaged answers; half a second."""


def answer_of(body: bytes = b"hello", *lines: bytes, status: bytes = b"200 OK") -> bytes:
    head = [b"HTTP/1.1 " + status, b"Content-Length: %d" % len(body), *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


class FakeTransport(asyncio.Transport):
    """Takes what is written; is closed at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closed

    def abort(self) -> None:
        self.closed = True


def connected() -> tuple[Connection, FakeTransport]:
    connection, transport = Connection(MOST, lambda _: None), FakeTransport()
    connection.connection_made(transport)
    return connection, transport


async def answered(*pieces: bytes) -> Answer:
    """What a connection makes of an answer that comes in these pieces; then it ends."""
    connection, _ = connected()
    asking = asyncio.ensure_future(connection.ask(ASK))
    await asyncio.sleep(0)
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    return await asking


class TestAnswers:
    async def test_an_answer_has_its_status_headers_and_body(self) -> None:
        found = await answered(answer_of(b"{}", b"X-Signature:  abc ", status=b"409 Conflict"))

        assert (found.status, found.body, found.headers["x-signature"]) == (409, b"{}", "abc")

    async def test_an_answer_may_come_in_any_pieces(self) -> None:
        whole = answer_of(b"some body", b"X-A: b")
        for cut in range(1, len(whole)):
            assert (await answered(whole[:cut], whole[cut:])).body == b"some body"
        assert (await answered(*(bytes([b]) for b in whole))).body == b"some body"

    @pytest.mark.parametrize(
        "bad",
        [
            pytest.param(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", id="an older version"),
            pytest.param(b"HTTP/1.1 100 C\r\nContent-Length: 0\r\n\r\n", id="an interim answer"),
            pytest.param(b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n", id="a long status"),
            pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n\r\n", id="another protocol"),
            pytest.param(b"HTTP/1.1 200 OK\r\n\r\n", id="no length"),
            pytest.param(answer_of(b"", b"Content-Length: 0"), id="two lengths"),
            pytest.param(answer_of(b"", b"Transfer-Encoding: chunked"), id="a length and pieces"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", id="a negative length"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 0x5\r\n\r\n", id="a hex length"),
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n", id="too long"),
            pytest.param(answer_of(b"", b"Content-Encoding: gzip"), id="packed"),
            pytest.param(answer_of(b"", b"X A: b"), id="a header with a space in its name"),
            pytest.param(answer_of(b"", b" X-A: folded"), id="a folded header"),
            pytest.param(answer_of(b"", b"X-A: b\x00c"), id="a header with a zero byte"),
            pytest.param(answer_of(b"", b"X-A: b\nContent-Length: 9"), id="a bare line feed"),
            pytest.param(answer_of(b"", *([b"X: y"] * 40)), id="many headers"),
            pytest.param(answer_of(b"", b"X: " + b"y" * 2000), id="a long header"),
            pytest.param(b"X" * (MAX_HEAD_BYTES + 1), id="no end of the headers"),
            pytest.param(answer_of() + b"x", id="a byte more than the length"),
            pytest.param(answer_of() + answer_of(), id="two answers"),
            pytest.param(answer_of()[:-1], id="a byte less than the length"),
            pytest.param(b"", id="nothing"),
        ],
    )
    async def test_what_is_not_exactly_one_answer_is_refused(self, bad: bytes) -> None:
        with pytest.raises(HttpError):
            await answered(bad)

    async def test_a_damaged_answer_is_an_answer_or_an_error_and_never_more(self) -> None:
        dice = random.Random(7)  # noqa: S311 - repeatable on purpose
        whole = answer_of(b"0123456789", b"X-Signature: abcdef", b"Connection: keep-alive")
        refused = 0
        for _ in range(FUZZED):
            damaged = bytearray(whole)
            for _ in range(dice.randint(1, 4)):
                at = dice.randrange(len(damaged))
                match dice.randrange(3):
                    case 0:
                        damaged[at] = dice.randrange(256)
                    case 1:
                        del damaged[at]
                    case _:
                        damaged[at:at] = bytes(dice.choices(b"\r\n: 0\x00A", k=dice.randint(1, 9)))
            try:
                found = await answered(bytes(damaged))
            except HttpError:
                refused += 1
            else:
                assert len(found.body) == int(found.headers["content-length"]) <= MOST
        assert 0 < refused < FUZZED

    async def test_an_answer_that_was_not_asked_for_ends_the_connection(self) -> None:
        connection, transport = connected()
        connection.data_received(answer_of())

        assert transport.closed
        assert not connection.is_open

    async def test_an_answer_may_say_that_it_is_the_last_one(self) -> None:
        connection, _ = connected()
        asking = asyncio.ensure_future(connection.ask(ASK))
        await asyncio.sleep(0)
        connection.data_received(answer_of(b"", b"Connection: close"))
        await asking

        assert not connection.is_open

    async def test_a_request_that_is_given_up_ends_its_connection(self) -> None:
        connection, transport = connected()
        asking = asyncio.ensure_future(connection.ask(ASK))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

        assert transport.closed


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeServer:
    """Answers every request with its number; ends a connection after so many of them."""

    def __init__(self) -> None:
        self.requests = 0
        self.connections = 0
        self.ends_after = 10**9
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        left = self.ends_after
        try:
            while left:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                left -= 1
                writer.write(answer_of(b"%d" % self.requests))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    found = FakeServer()
    listening = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = listening.sockets[0].getsockname()[1]
    yield found
    listening.close()


@pytest.fixture
async def client() -> AsyncIterator[HttpClient]:
    client = HttpClient(max_body_bytes=MOST, max_idle=2, connect_timeout_seconds=5)
    yield client
    client.close()


class TestConnections:
    async def test_a_connection_is_kept(self, server: FakeServer, client: HttpClient) -> None:
        bodies = [(await client.ask(server.address, ASK)).body for _ in range(3)]

        assert bodies == [b"1", b"2", b"3"]
        assert server.connections == 1

    async def test_requests_at_the_same_time_have_connections_of_their_own(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        await asyncio.gather(*(client.ask(server.address, ASK) for _ in range(8)))

        assert (server.requests, server.connections) == (8, 8)

    async def test_no_more_connections_wait_than_may(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        await asyncio.gather(*(client.ask(server.address, ASK) for _ in range(8)))
        await asyncio.gather(*(client.ask(server.address, ASK) for _ in range(8)))

        assert server.connections == 8 + 6  # two of the first eight were kept

    async def test_a_kept_connection_that_has_ended_is_replaced(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        server.ends_after = 1
        for number in range(1, 4):
            assert (await client.ask(server.address, ASK)).body == b"%d" % number

        assert server.requests == 3

    async def test_a_new_connection_that_ends_is_an_error(self, client: HttpClient) -> None:
        async def ends(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        listening = await asyncio.start_server(ends, "127.0.0.1", 0)
        async with listening:
            with pytest.raises((HttpError, ConnectionError)):
                await client.ask(listening.sockets[0].getsockname(), ASK)

    async def test_closing_ends_requests_that_wait(self, client: HttpClient) -> None:
        asked = asyncio.Event()

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(listens, "127.0.0.1", 0)
        async with listening, asyncio.timeout(5):
            asking = asyncio.ensure_future(client.ask(listening.sockets[0].getsockname(), ASK))
            await asked.wait()
            client.close()
            with pytest.raises(HttpError):
                await asking
