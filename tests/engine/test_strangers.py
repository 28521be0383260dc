"""Strangers that open connections to a worker's ports, and send no whole request, cost it little."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import BinaryIO
from urllib.parse import urlsplit

import pytest
from tests.support.environments import engine_environment, worker_python
from tests.support.waiting import eventually_async
from tests.support.worker import WorkerProcess

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"
LINE = b"X-1: " + b"a" * 60_000 + b"\r\n"
SERVER = """
import asyncio, sys
from fleet_worker.http import heads, strangers
from fleet_worker.http.server import serve
from fleet_worker.http.sockets import bound_socket
heads.MAX_BYTES, heads.MAX_CONNECTIONS, heads.SECONDS = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
strangers.PER_SECOND = float(sys.argv[4])
waiting = 0

async def app(scope, receive, send):
    global waiting
    if scope["path"] in ("/stranger", "/readyz"):
        waiting += 1
        try:
            await strangers.turn_of(scope)
        finally:
            waiting -= 1
    if scope["path"] == "/slow":
        await asyncio.sleep(1)
    size, more = 0, scope["path"] != "/refused"
    while more:
        message = await receive()
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    body = str(waiting if scope["path"] == "/waiting" else size).encode()
    headers = [(b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})

listener = bound_socket("127.0.0.1", 0)
listener.listen()
print(listener.getsockname()[1], flush=True)
asyncio.run(serve(app, listener, lambda: None))
"""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Served:
    """A port with the server of our ports, in a process of the worker's environment."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []

    @classmethod
    @asynccontextmanager
    async def with_limits(
        cls,
        *,
        size: int = 2**23,
        connections: int = 8192,
        seconds: float = 10,
        strangers: float = 100,
        log: BinaryIO | None = None,
    ) -> AsyncIterator[Served]:
        limits = (str(size), str(connections), str(seconds), str(strangers))
        process = await asyncio.create_subprocess_exec(
            *(worker_python(), "-c", SERVER, *limits),
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            env=engine_environment(),
        )
        assert process.stdout is not None
        try:
            served = cls(int(await asyncio.wait_for(process.stdout.readline(), 60)))
            assert await served.answers()
            yield served
            for writer in served._writers:
                writer.close()
        finally:
            process.kill()
            await process.wait()

    async def open(self, sent: bytes) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers.append(writer)
        writer.write(sent)
        return reader, writer

    async def waiting(self) -> int:
        """The requests of strangers that wait for their turn."""
        reader, _ = await self.open(b"GET /waiting HTTP/1.0\r\nHost: a\r\n\r\n")
        return int((await asyncio.wait_for(reader.read(), 10)).rpartition(b"\r\n")[2])

    async def answers(self) -> bool:
        return await has_answer(await self.open(GET + b"Connection: close\r\n\r\n"))


async def has_answer(connection: Connection) -> bool:
    return b" 200 " in await asyncio.wait_for(connection[0].readline(), 10)


async def has_ended(connection: Connection) -> bool:
    try:
        return not await asyncio.wait_for(connection[0].read(1), 10)
    except ConnectionError:
        return True


async def test_the_longest_heads_end_beyond_a_limit_of_all() -> None:
    async with Served.with_limits(size=200_000) as served:
        short = await served.open(GET)
        long = [await served.open(GET + LINE) for _ in range(3)]
        long[0][1].write(LINE)
        assert await has_ended(long[0])
        assert await served.answers()
        for each in (short, long[1]):
            each[1].write(b"\r\n")
            assert await has_answer(each)


async def test_strangers_with_many_short_heads_end_no_request_that_comes_whole() -> None:
    """Its body is in the same bytes as its head, and longer than any of the strangers' heads."""
    async with Served.with_limits(size=200_000) as served:
        for _ in range(19):
            await served.open(GET + LINE[:10_000])
        head = b"PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n"
        for _ in range(3):
            assert await has_answer(await served.open(head + b"x" * 50_000))


async def test_the_next_head_that_came_with_a_request_counts() -> None:
    async with Served.with_limits(size=200_000) as served:
        connection = await served.open(GET + b"\r\n" + GET + LINE)
        assert await has_answer(connection)
        with contextlib.suppress(ConnectionError):
            for _ in range(3):
                connection[1].write(LINE)
                await connection[1].drain()
        await asyncio.wait_for(connection[0].readuntil(b"\r\n\r\n0"), 10)
        assert await has_ended(connection)


@pytest.mark.parametrize(
    "sent", [b"", GET, GET + b"\r\n" + GET], ids=["none", "a part", "a second"]
)
async def test_a_head_that_does_not_come_ends_its_connection(sent: bytes) -> None:
    async with Served.with_limits(seconds=0.3) as served:
        connection = await served.open(sent)
        if sent.count(GET) == 2:
            assert await has_answer(connection)
            connection[1].write(b"X: 1\r\n")
            await asyncio.wait_for(connection[0].readuntil(b"\r\n\r\n0"), 10)
        assert await has_ended(connection)


async def test_a_head_behind_the_rest_of_a_refused_body_counts() -> None:
    async with Served.with_limits(size=200_000) as served:
        head = b"PUT /refused HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n"
        reader, writer = connection = await served.open(head)
        await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), 10)
        writer.write(b"x" * 100_000 + GET)
        with contextlib.suppress(ConnectionError):
            for _ in range(5):
                writer.write(LINE)
                await writer.drain()
        assert await has_ended(connection)


async def test_a_request_that_runs_and_a_body_that_comes_slowly_do_not_end() -> None:
    async with Served.with_limits(seconds=0.2) as served:
        head = b"PUT /%s HTTP/1.1\r\nHost: a\r\nContent-Length: 400000\r\n\r\n"
        body = await served.open(head % b"" + b"x" * 100_000)
        running = await served.open(head % b"slow" + b"x" * 400_000)
        for _ in range(3):
            await asyncio.sleep(0.2)
            body[1].write(b"x" * 100_000)
        assert await has_answer(body)
        assert await has_answer(running)


async def test_the_oldest_idle_connection_gives_way_and_running_requests_stay() -> None:
    async with Served.with_limits(connections=3) as served:
        running = await served.open(b"GET /slow HTTP/1.1\r\nHost: a\r\n\r\n")
        idle = []
        for _ in range(4):
            idle.append(await served.open(GET))
            await asyncio.sleep(0.05)
        assert [await has_ended(each) for each in idle[:2]] == [True, True]
        assert await has_answer(running)


async def test_strangers_that_wait_for_their_turn_give_way_and_leave_nothing() -> None:
    async with Served.with_limits(connections=5, strangers=1e-6) as served:
        sent = b"GET /stranger HTTP/1.1\r\nHost: a\r\n\r\n"
        assert await has_answer(await served.open(sent))
        strangers = [await served.open(sent) for _ in range(3)]
        await until(served, 3)
        assert await served.answers()
        strangers[2][1].close()
        await until(served, 2)
        strangers += [await served.open(sent) for _ in range(6)]
        assert [await has_ended(each) for each in strangers[:2]] == [True, True]
        assert await served.waiting() <= 4


UPGRADE = b"GET /stranger HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: "
WEB_SOCKET = (
    b"websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize("upgrade", [b"h2c\r\n\r\n", WEB_SOCKET])
async def test_a_request_for_another_protocol_waits_for_its_turn(upgrade: bytes) -> None:
    async with Served.with_limits(strangers=1e-6) as served:
        assert await has_answer(await served.open(UPGRADE + upgrade))
        await served.open(UPGRADE + upgrade)
        await until(served, 1)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\r\n\r\n",
        b"GET /stranger HTTP/1.1\r\nHost: a\r\n\r\n\x00\r\n\r\n",
        UPGRADE + b"h2c\r\n\r\n",
        UPGRADE + WEB_SOCKET,
    ],
)
async def test_strangers_write_nothing_into_the_log(sent: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log"
    with file.open("wb") as log:
        async with Served.with_limits(log=log) as served:
            assert not await has_ended(await served.open(sent))
    assert file.read_text() == ""


async def test_a_probe_waits_for_no_other_requests_of_its_address() -> None:
    """Behind SNAT, clients with a wrong key have the address of the kubelet, which waits 5 s."""
    async with Served.with_limits(strangers=1) as served:
        for _ in range(40):
            await served.open(b"GET /stranger HTTP/1.1\r\nHost: a\r\n\r\n")
        await until(served, 35, exactly=False)
        assert await has_answer(await served.open(b"GET /readyz HTTP/1.1\r\nHost: a\r\n\r\n"))
        assert await served.waiting() > 20


async def test_the_body_of_a_stranger_is_dropped_before_its_turn() -> None:
    async with Served.with_limits() as served:
        head = b"PUT /stranger HTTP/1.1\r\nHost: a\r\nContent-Length: 50000\r\n\r\n"
        reader, _ = await served.open(head + b"x" * 50_000)
        assert (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n0"), 10)).startswith(
            b"HTTP/1.1 200 "
        )


async def until(served: Served, number: int, *, exactly: bool = True) -> None:
    async def holds() -> bool:
        return await served.waiting() == number if exactly else await served.waiting() >= number

    await eventually_async(holds)


async def test_an_endless_head_at_the_public_port_ends_and_the_worker_answers(
    worker: WorkerProcess,
) -> None:
    url = urlsplit(str(worker.public.base_url))
    reader, writer = await asyncio.open_connection(url.hostname, url.port)
    writer.write(GET)
    sent = 0
    with contextlib.suppress(ConnectionError):
        while sent < 64 * 2**20:
            writer.write(LINE)
            await writer.drain()
            sent += len(LINE)
    assert sent < 64 * 2**20
    assert await has_ended((reader, writer))
    assert worker.public.get("/health").status_code == 200
