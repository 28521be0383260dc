"""The RL API's real application over a fake API server, for clients by its URL."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import FakeCluster
from tests.support.families import url_of

from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings


class RlApi:
    """The RL API on a port of the loopback. A look at the state lets the operator act."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.requests: list[str] = []
        self.odd: deque[tuple[str, web.Response]] = deque()
        """Method and answer of something before the API, which answers after it in its place."""
        self.url = ""

    @property
    def objects(self) -> Any:
        return self.cluster.objects

    @web.middleware
    async def between(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        response = await handler(request)
        if request.method == "GET":
            self.objects._acts()
        if self.odd and self.odd[0][0] == request.method:
            return self.odd.popleft()[1]
        return response


@asynccontextmanager
async def rl_api(address: str = "127.0.0.1") -> AsyncIterator[RlApi]:
    """The RL API with fleet `policy` in namespace `rl`, at an address of the loopback."""
    made = RlApi()
    settings = parse_settings(["--requests-per-second=10000"])
    app = build(settings, made.cluster, Lifecycle(), Metrics())
    app.middlewares.insert(0, made.between)
    async with TestServer(app, host=address) as server:
        made.url = url_of(address, server.port or 0)
        yield made
