"""The client's connections: one request, exactly one answer, and nothing that mixes two of them up."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from fleet_operator.clients.http_client import SMALL_BYTES, HttpClient
from fleet_operator.clients.http_connections import Address, Connection
from fleet_operator.clients.http_response import MAX_HEAD_BYTES, HttpError, HttpResponse
from fleet_worker.http.byte_budget import ByteBudget

ASK = b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
MAX_BYTES = 100_000
MAX_BUFFERED = 4 * MAX_BYTES
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


class Outcome:
    """The result of a request."""

    def __init__(self) -> None:
        self._found: asyncio.Future[HttpResponse] = asyncio.get_running_loop().create_future()

    def take(self, outcome: HttpResponse | Exception) -> None:
        if isinstance(outcome, Exception):
            self._found.set_exception(outcome)
        else:
            self._found.set_result(outcome)

    @property
    def is_known(self) -> bool:
        return self._found.done()

    async def wait(self) -> HttpResponse:
        return await self._found


def budget_of(max_bytes: int) -> ByteBudget[Connection]:
    return ByteBudget(max_bytes=max_bytes, small_bytes=SMALL_BYTES)


def connected(budget: ByteBudget[Connection] | None = None) -> tuple[Connection, FakeTransport]:
    budget, transport = budget or budget_of(MAX_BUFFERED), FakeTransport()
    connection = Connection(("host", 1), MAX_BYTES, budget, lambda _: None)
    connection.connection_made(transport)
    return connection, transport


async def answered(*pieces: bytes) -> HttpResponse:
    """The result of a connection whose answer comes in these pieces and then ends."""
    (connection, _), outcome = connected(), Outcome()
    connection.send(ASK, outcome.take)
    for piece in pieces:
        connection.data_received(piece)
    connection.connection_lost(None)
    return await outcome.wait()


async def ask(client: HttpClient, address: Address, *, timeout_seconds: float = 5) -> HttpResponse:
    outcome = Outcome()
    client.send(address, ASK, outcome.take, timeout_seconds=timeout_seconds)
    return await outcome.wait()


class TestAnswers:
    async def test_an_answer_has_its_status_headers_and_body(self) -> None:
        found = await answered(answer_of(b"{}", b"X-Signature:  abc ", status=b"409 Conflict"))

        assert (found.status, found.body, found.headers["x-signature"]) == (409, b"{}", "abc")

    async def test_an_answer_may_arrive_in_any_pieces(self) -> None:
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
            pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100001\r\n\r\n", id="too long"),
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
    async def test_anything_but_one_answer_is_refused(self, bad: bytes) -> None:
        with pytest.raises(HttpError):
            await answered(bad)

    async def test_a_damaged_answer_is_an_answer_or_an_error(self) -> None:
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
                assert len(found.body) == int(found.headers["content-length"]) <= MAX_BYTES
        assert 0 < refused < FUZZED

    async def test_an_unrequested_answer_ends_the_connection(self) -> None:
        connection, transport = connected()
        connection.data_received(answer_of())

        assert transport.closed
        assert not connection.is_open

    async def test_an_answer_may_close_the_connection(self) -> None:
        (connection, _), outcome = connected(), Outcome()
        connection.send(ASK, outcome.take)
        connection.data_received(answer_of(b"", b"Connection: close"))
        await outcome.wait()

        assert not connection.is_open

    async def test_a_cancelled_request_ends_its_connection(self) -> None:
        (connection, transport), outcome = connected(), Outcome()
        connection.send(ASK, outcome.take)
        connection.drop()
        connection.data_received(answer_of())
        connection.connection_lost(None)

        assert transport.closed
        assert not connection.is_open
        assert not outcome.is_known

    async def test_a_second_request_waits_for_the_end_of_the_first(self) -> None:
        (connection, transport), outcome = connected(), Outcome()
        connection.send(ASK, outcome.take)
        with pytest.raises(HttpError):
            connection.send(ASK, Outcome().take)
        connection.data_received(answer_of(b"one"))

        assert (await outcome.wait()).body == b"one"
        assert transport.written == ASK

    @pytest.mark.parametrize(
        "lines",
        [
            pytest.param([b"X:" + b" \t" * 500] * 8, id="blanks"),
            pytest.param([b"X" * 1000 + b":" + b":" * 20] * 7, id="colons"),
            pytest.param([b"X: y"] * 30, id="short ones"),
        ],
    )
    async def test_parsing_headers_is_linear_in_their_size(self, lines: list[bytes]) -> None:
        """A pattern that can match them in several ways would try all of them without end."""
        with pytest.raises(HttpError, match="malformed"):
            await answered(answer_of(b"", *lines, b"X: \x00"))


def begun(budget: ByteBudget[Connection], size: int) -> tuple[Connection, FakeTransport, Outcome]:
    """A connection with an answer of this size, of which the last byte is missing."""
    (connection, transport), outcome = connected(budget), Outcome()
    connection.send(ASK, outcome.take)
    connection.data_received(answer_of(bytes(size))[:-1])
    return connection, transport, outcome


class TestUnfinishedAnswers:
    """One answer is limited, and so are all of them together."""

    async def test_beyond_the_budget_the_largest_answer_is_refused(self) -> None:
        budget = budget_of(MAX_BUFFERED)
        hostile = [
            begun(budget, size) for size in (MAX_BYTES - 2, MAX_BYTES - 1, MAX_BYTES, MAX_BYTES - 3)
        ]
        honest, _, answer = begun(budget, 2 * SMALL_BYTES)
        refused = [outcome.is_known for _, _, outcome in hostile]
        closed = [transport.closed for _, transport, _ in hostile]
        honest.data_received(b"\x00")

        assert refused == closed == [False, False, True, False]
        with pytest.raises(HttpError, match="unfinished answers of all workers"):
            await hostile[2][2].wait()
        assert len((await answer.wait()).body) == 2 * SMALL_BYTES
        assert budget.used_bytes < MAX_BUFFERED

    async def test_a_small_answer_is_never_refused(self) -> None:
        budget = budget_of(0)
        connection, _, outcome = begun(budget, SMALL_BYTES // 2)
        connection.data_received(b"\x00")

        assert (await outcome.wait()).status == 200

    @pytest.mark.parametrize("end", ["answered", "malformed", "lost", "dropped", "refused"])
    async def test_an_answer_that_has_ended_no_longer_counts(self, end: str) -> None:
        budget = budget_of(MAX_BUFFERED)
        connection, _, outcome = begun(budget, MAX_BYTES)
        counted = budget.used_bytes
        match end:
            case "answered":
                connection.data_received(b"\x00")
            case "malformed":
                connection.data_received(b"\x00\x00")
            case "lost":
                connection.connection_lost(None)
            case "dropped":
                connection.drop()
            case _:
                connection.refuse("enough")

        assert (counted > MAX_BYTES, budget.used_bytes) == (True, 0)
        assert outcome.is_known is (end != "dropped")
        if outcome.is_known and end != "answered":
            with pytest.raises(HttpError):
                await outcome.wait()

    async def test_an_answer_in_one_piece_does_not_count(self) -> None:
        assert len((await answered(answer_of(bytes(MAX_BYTES)))).body) == MAX_BYTES

        (connection, _), outcome = connected(budget_of(0)), Outcome()
        connection.send(ASK, outcome.take)
        connection.data_received(answer_of(bytes(MAX_BYTES)))

        assert len((await outcome.wait()).body) == MAX_BYTES


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class FakeServer:
    """Answers every request with its number, and ends a connection after a number of them."""

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
    client = HttpClient(max_body_bytes=MAX_BYTES, max_idle=2, connect_timeout_seconds=5)
    yield client
    client.close()


class TestConnections:
    async def test_a_connection_is_kept(self, server: FakeServer, client: HttpClient) -> None:
        bodies = [(await ask(client, server.address)).body for _ in range(3)]

        assert bodies == [b"1", b"2", b"3"]
        assert server.connections == 1

    async def test_concurrent_requests_use_separate_connections(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        await asyncio.gather(*(ask(client, server.address) for _ in range(8)))

        assert (server.requests, server.connections) == (8, 8)

    async def test_the_number_of_idle_connections_is_limited(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        await asyncio.gather(*(ask(client, server.address) for _ in range(8)))
        await asyncio.gather(*(ask(client, server.address) for _ in range(8)))

        assert server.connections == 8 + 6  # two of the first eight were kept

    async def test_a_kept_connection_that_was_closed_is_replaced(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        server.ends_after = 1
        for number in range(1, 4):
            assert (await ask(client, server.address)).body == b"%d" % number

        assert server.requests == 3

    async def test_a_new_connection_that_is_closed_is_an_error(self, client: HttpClient) -> None:
        async def ends(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.close()

        listening = await asyncio.start_server(ends, "127.0.0.1", 0)
        async with listening:
            with pytest.raises((HttpError, ConnectionError)):
                await ask(client, listening.sockets[0].getsockname())

    async def test_closing_ends_waiting_requests(self, client: HttpClient) -> None:
        asked = asyncio.Event()

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            asked.set()
            await reader.read()
            writer.close()

        listening = await asyncio.start_server(listens, "127.0.0.1", 0)
        async with listening, asyncio.timeout(30):
            asking = asyncio.ensure_future(ask(client, listening.sockets[0].getsockname()))
            await asked.wait()
            client.close()
            with pytest.raises(HttpError):
                await asking

    async def test_a_request_ends_at_its_timeout(self, client: HttpClient) -> None:
        ended = asyncio.Event()

        async def listens(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            ended.set()
            writer.close()

        listening = await asyncio.start_server(listens, "127.0.0.1", 0)
        address = listening.sockets[0].getsockname()
        async with listening, asyncio.timeout(30):
            with pytest.raises(HttpError, match=r"no answer after 0\.1 s"):
                await ask(client, address, timeout_seconds=0.1)
            await ended.wait()  # nothing can come on this connection any more

    @pytest.mark.parametrize("kept", [0, 1])
    async def test_a_cancelled_request_gets_no_callback(
        self, server: FakeServer, client: HttpClient, kept: int
    ) -> None:
        if kept:
            await ask(client, server.address)
        outcome = Outcome()
        client.send(server.address, ASK, outcome.take, timeout_seconds=5).give_up()
        body = (await ask(client, server.address)).body

        assert body == b"%d" % server.requests
        assert server.connections == 1 + kept
        assert not outcome.is_known

    async def test_closing_ends_a_connection_attempt(self, server: FakeServer) -> None:
        client = HttpClient(max_body_bytes=MAX_BYTES, max_idle=2, connect_timeout_seconds=5)
        outcome = Outcome()
        client.send(server.address, ASK, outcome.take, timeout_seconds=5)
        client.close()
        with pytest.raises(HttpError, match="closed"):
            await outcome.wait()

        assert server.requests == 0

    async def test_the_next_request_may_be_sent_from_the_callback_of_one(
        self, server: FakeServer, client: HttpClient
    ) -> None:
        second = Outcome()

        def again(_: HttpResponse | Exception) -> None:
            client.send(server.address, ASK, second.take, timeout_seconds=5)

        client.send(server.address, ASK, again, timeout_seconds=5)

        assert (await second.wait()).body == b"2"
        assert server.connections == 1
