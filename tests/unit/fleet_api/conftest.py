"""The RL API's application over a fake of the API server, on a port of the loopback."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web_app
from aiohttp.test_utils import TestClient, TestServer
from tests.support.fake_cluster import READER, FakeCluster
from tests.support.openapi import check

import fleet_api.app
from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings

STATIC_KEY = "a-static-key-of-policy"


@pytest.fixture(autouse=True)
def refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests send too many requests on purpose."""
    monkeypatch.setattr(fleet_api.app, "REFUSED_SECONDS", 0.0)


class Api:
    """Sends requests to the API as one caller, and holds each reply against its OpenAPI document."""

    def __init__(
        self, http: TestClient[Any, Any], cluster: FakeCluster, keys: Path, document: Any
    ) -> None:
        self.http = http
        self.document = document
        self.cluster = cluster
        self.keys = keys
        self.public_keys = keys.parent / "public-keys"

    async def send(
        self, method: str, path: str, token: str | None = READER, **options: Any
    ) -> tuple[int, Any]:
        """Status and body of the reply. `path`: below the fleet; with two slashes, from the root."""
        headers = options.pop("headers", {})
        if token is not None:
            headers = {"Authorization": f"Bearer {token}"} | headers
        where = path[1:] if path.startswith("//") else f"/fleets/rl/policy{path}"
        async with self.http.request(method, where, headers=headers, **options) as reply:
            is_json = reply.content_type.endswith("json")
            body = await reply.json(content_type=None) if is_json else await reply.text()
            request = (method, reply.url.path)
            check(self.document, request, reply.status, reply.content_type, body)
            return reply.status, body

    async def get(self, path: str, token: str | None = READER, **options: Any) -> tuple[int, Any]:
        return await self.send("GET", path, token, **options)


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def flags() -> list[str]:
    """Flags of the process; a test may override the fixture."""
    return []


@pytest.fixture
def lifecycle() -> Lifecycle:
    return Lifecycle()


@pytest.fixture
def upstream() -> str | None:
    """Where the fleet's Service leads to: by default nothing listens there."""
    return None


@pytest.fixture
def upstream_router() -> str | None:
    """Where the Service of its router leads to. It has the port of the other one."""
    return None


@pytest.fixture
async def api(cluster, flags, lifecycle, tmp_path, upstream, upstream_router) -> AsyncIterator[Api]:
    if upstream is not None:
        cluster.lead(upstream, upstream_router)
    keys = tmp_path / "keys"
    keys.mkdir()
    public = tmp_path / "public-keys"
    public.mkdir()
    folders = [f"--keys-folder={keys}", f"--public-keys-folder={public}"]
    settings = parse_settings([*folders, "--requests-per-second=1000", *flags])
    app = build(settings, cluster, lifecycle, Metrics())
    server = TestServer(app)
    await server.start_server(access_log=None)  # as `main` starts it
    async with TestClient(server) as http:
        async with http.get("/openapi.json") as reply:
            document = await reply.json()
        yield Api(http, cluster, keys, document)
    # aiohttp remembers the applications of 1024 handlers: a million objects in each collection of garbage.
    web_app._cached_build_middleware.cache_clear()
