"""Clients that begin a body and do not send the rest."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import suppress
from unittest.mock import Mock

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support import virtual_time
from tests.support.fake_cluster import TRAINER
from tests.unit.fleet_api.conftest import Api

from fleet_api import bodies
from fleet_api.bodies import BODY_SECONDS, STALL_SECONDS, ComingBody
from fleet_api.limits import LARGE_BODY_BYTES
from fleet_api.problems import Problem

PLACES = 3
"""The share of one namespace."""


@pytest.fixture
def flags() -> list[str]:
    flags = "--concurrent-requests", "--concurrent-proxied-requests"
    return [f"{flag}={2 * PLACES}" for flag in flags] + ["--external-fleets=rl/policy"]


@pytest.fixture
async def upstream() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await request.read())

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    yield str(server.make_url("")).rstrip("/")
    await server.close()


async def stalled(
    api: Api, path: str, size_bytes: int = 10, *, byte_seconds: float | None = None
) -> int:
    """The status for a body of which one byte comes, or one each `byte_seconds`."""
    reader, writer = await asyncio.open_connection(api.http.server.host, api.http.server.port)
    head = (
        f"POST /fleets/rl/policy{path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TRAINER}\r\n"
    )
    writer.write(f"{head}Content-Length: {size_bytes}\r\n\r\n{{".encode())
    answered = asyncio.create_task(reader.readline())
    async with asyncio.timeout(10):
        while byte_seconds is not None and not answered.done():
            await asyncio.sleep(byte_seconds)
            with suppress(ConnectionError):
                writer.write(b" ")
                await writer.drain()
        status = await answered
    writer.close()
    await writer.wait_closed()
    return int(status.split()[1])


async def test_a_large_body_has_time_by_its_size(api, monkeypatch):
    """Over a round trip of 100 ms, its buffer lets about 127 KiB through in a second."""
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.0)
    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    driver = api.cluster.rights["system:serviceaccount:rl:trainer"]
    driver.add(("update", "inferencefleets/control", "rl", "policy"))
    content = io.BytesIO(b" " * LARGE_BODY_BYTES)

    status, problem = await api.send("POST", "/update_weights", TRAINER, data=content)
    assert (status, problem["reason"]) == (404, "NotFound"), "it has come: no Secret has the token"


async def test_a_large_body_that_stops_ends_before_the_time_of_its_size(api, monkeypatch):
    """Two would else keep their namespace's share of memory for 287 s."""
    monkeypatch.setattr(bodies, "STALL_SECONDS", 0.1)
    api.cluster.fleet["spec"]["weights"]["management"] = "External"
    driver = api.cluster.rights["system:serviceaccount:rl:trainer"]
    driver.add(("update", "inferencefleets/control", "rl", "policy"))

    assert await stalled(api, "/update_weights", LARGE_BODY_BYTES) == 408


@pytest.mark.parametrize("management", ["Operator", "External"])
@pytest.mark.parametrize("path", ["/v1/rl/suspend", "/update_weights", "/v1/completions"])
async def test_a_body_that_does_not_come_is_408_and_gives_its_place_back(
    api, monkeypatch, management, path
):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.1)
    api.cluster.fleet["spec"]["weights"]["management"] = management
    driver = api.cluster.rights["system:serviceaccount:rl:trainer"]
    driver.add(("update", "inferencefleets/control", "rl", "policy"))

    assert await asyncio.gather(*(stalled(api, path) for _ in range(PLACES))) == [408] * PLACES
    assert (await api.get("/v1/rl/state"))[0] == 200
    assert (await api.send("POST", "/v1/completions", data=b"{}"))[0] == 200


@pytest.mark.parametrize("path", ["/v1/rl/suspend", "/v1/completions"])
async def test_a_body_that_comes_byte_by_byte_is_408_and_gives_its_place_back(
    api, monkeypatch, path
):
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.5)

    sent = (stalled(api, path, 10_000, byte_seconds=0.05) for _ in range(PLACES))
    assert await asyncio.gather(*sent) == [408] * PLACES
    assert (await api.send("POST", "/v1/completions", data=b"{}"))[0] == 200


def test_the_time_between_two_reads_does_not_count():
    """The worker of a rollout client may take its parts slowly."""
    part_seconds, pause_seconds = 1.0, 100.0

    async def part() -> bytes:
        await asyncio.sleep(part_seconds)
        return b"part"

    async def parts_in_time() -> int:
        coming = ComingBody(Mock(content=Mock(readany=part)), max_bytes=0)
        for parts in range(1000):
            try:
                await coming.next()
            except Problem:
                return parts
            await asyncio.sleep(pause_seconds)
        raise AssertionError("it was never too slow")

    assert abs(virtual_time.run(parts_in_time()) - BODY_SECONDS / part_seconds) <= 1
    assert part_seconds < STALL_SECONDS < pause_seconds
