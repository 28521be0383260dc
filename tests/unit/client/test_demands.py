"""Unmet demands, over a Service: each connection reaches the next worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from rlfleet import AsyncDemandTransport, DemandTransport, Sampling, demands

Post = Callable[..., Any]


class FakeService:
    """Workers with these versions, behind one address."""

    def __init__(self, *versions: int) -> None:
        self.versions = versions
        self.connections: list[Any] = []
        self.bodies: list[bytes] = []
        self.url = ""
        self.together = asyncio.Barrier(1)
        """Requests with the body `first` wait for each other, so each has its own connection."""

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        if self.bodies[-1] == b"first":
            async with asyncio.timeout(20):
                await self.together.wait()
        if request.transport not in self.connections:
            self.connections.append(request.transport)
        version = self.versions[self.connections.index(request.transport) % len(self.versions)]
        if version < int(request.headers.get("x-weight-version-min", 0)):
            headers = {"Retry-After": "1", "x-weight-version": str(version)}
            return web.json_response(
                {"error": {"type": "WeightVersionError"}}, status=409, headers=headers
            )
        if request.headers.get("x-odd"):
            return web.Response(status=409)
        return web.json_response({"version": version})


async def blocking(url: str, attempts: int, *, idle: int = 1, **headers: str) -> httpx.Response:
    with httpx.Client(transport=DemandTransport(attempts=attempts), timeout=20) as http:
        firsts = (asyncio.to_thread(http.post, url, content=b"first") for _ in range(idle))
        await asyncio.gather(*firsts)
        return await asyncio.to_thread(http.post, url, content=b"body", headers=headers)


async def on_a_loop(url: str, attempts: int, *, idle: int = 1, **headers: str) -> httpx.Response:
    transport = AsyncDemandTransport(attempts=attempts)
    async with httpx.AsyncClient(transport=transport, timeout=20) as http:
        await asyncio.gather(*(http.post(url, content=b"first") for _ in range(idle)))
        return await http.post(url, content=b"body", headers=headers)


@pytest.fixture(params=[blocking, on_a_loop], ids=["blocking", "asyncio"])
def post(request: pytest.FixtureRequest) -> Post:
    return request.param


@pytest.fixture
async def serve(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr(demands, "_FIRST_PAUSE_SECONDS", 0.001)
    servers: list[TestServer] = []

    async def start(*versions: int) -> FakeService:
        service, app = FakeService(*versions), web.Application()
        app.router.add_post("/", service.answer)
        servers.append(TestServer(app))
        await servers[-1].start_server()
        service.url = str(servers[-1].make_url("/"))
        return service

    yield start
    for server in servers:
        await server.close()


async def test_an_unmet_demand_reaches_another_worker_over_a_new_connection(serve, post):
    service = await serve(42, 42, 43)

    reply = await post(service.url, 8, **Sampling(minimum="43").headers())

    assert (reply.status_code, reply.json()) == (200, {"version": 43})
    assert len(service.connections) == 3
    assert service.bodies == [b"first", b"body", b"body", b"body"]


async def test_idle_connections_to_other_old_workers_are_not_tried(serve, post):
    service = await serve(42, 42, 42, 43)
    service.together = asyncio.Barrier(3)

    reply = await post(service.url, 8, idle=3, **Sampling(minimum="43").headers())

    assert reply.json() == {"version": 43}
    assert service.bodies.count(b"body") == 2


async def test_a_demand_that_no_worker_meets_is_409_after_the_last_attempt(serve, post):
    service = await serve(42)

    reply = await post(service.url, 4, **Sampling(minimum="43").headers())

    assert (reply.status_code, reply.headers["x-weight-version"]) == (409, "42")
    assert reply.json()["error"]["type"] == "WeightVersionError"
    assert service.bodies.count(b"body") == 4


async def test_other_conflicts_and_met_demands_are_sent_once(serve, post):
    service = await serve(43)

    assert (await post(service.url, 8, **{"x-odd": "1"})).status_code == 409
    assert (await post(service.url, 8, **Sampling(minimum="43").headers())).status_code == 200
    assert service.bodies.count(b"body") == 2


@pytest.mark.parametrize("transport", [DemandTransport, AsyncDemandTransport])
def test_no_attempt_is_an_error(transport):
    with pytest.raises(ValueError, match="at least 1"):
        transport(attempts=0)


def test_pauses_grow_to_a_limit():
    longest = [max(demands._pause_seconds(n) for _ in range(200)) for n in (1, 3, 20)]
    assert longest == sorted(longest)
    assert longest[0] <= 0.1
    assert 1 < longest[2] <= 2
