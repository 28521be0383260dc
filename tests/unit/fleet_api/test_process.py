"""The process itself, over HTTP to an API server that is a fake."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from tests.support.fake_cluster import READER, FakeCluster
from tests.support.waiting import eventually_async

from free_ports import free_port

ROOT = Path(__file__).parents[3]
OBJECTS = "/apis/rlfleet.dev/v1alpha1/namespaces/rl"


def server(cluster: FakeCluster) -> web.Application:
    """The fake of the API server behind real paths."""

    async def review(request: web.Request) -> web.Response:
        return web.json_response(
            await cluster.call("POST", request.path, body=await request.json())
        )

    async def fleet(_: web.Request) -> web.Response:
        return web.json_response(cluster.fleet)

    async def weights(_: web.Request) -> web.Response:
        return web.json_response(cluster.objects.weights)

    async def called(request: web.Request) -> web.Response:
        accept = request.headers["Accept"]
        query = dict(request.query)
        return web.json_response(await cluster.call("GET", request.path, query, accept=accept))

    app = web.Application()
    app.router.add_post("/apis/{kind:.*}", review)
    app.router.add_get(f"{OBJECTS}/inferencefleets/policy", fleet)
    app.router.add_get(f"{OBJECTS}/weightversions", called)
    app.router.add_get(f"{OBJECTS}/weightversions/policy", weights)
    app.router.add_get("/api/v1/namespaces/rl/pods", called)
    return app


@pytest.fixture
async def kubeconfig(cluster: FakeCluster, tmp_path: Path) -> AsyncIterator[Path]:
    runner = web.AppRunner(server(cluster))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    file = tmp_path / "kubeconfig"
    config: dict[str, Any] = {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "own-token"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    file.write_text(json.dumps(config))
    yield file
    await runner.cleanup()


async def test_the_process_serves_reads_the_api_server_and_ends_in_order(kubeconfig):
    port = free_port()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "fleet_api", "--host=127.0.0.1", f"--port={port}"),
        "--drain-seconds=0",
        env={
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(kubeconfig),
            "PYTHONPATH": f"{ROOT}/client:{ROOT}/operator:{ROOT}/worker",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        stderr=asyncio.subprocess.PIPE,
    )
    root = f"http://127.0.0.1:{port}"
    headers = {"Authorization": f"Bearer {READER}"}
    async with aiohttp.ClientSession() as http:

        async def get(path: str) -> tuple[int, str]:
            try:
                async with http.get(root + path, headers=headers) as reply:
                    return reply.status, await reply.text()
            except aiohttp.ClientConnectionError:
                return 0, ""

        async def is_ready() -> bool:
            return (await get("/readyz"))[0] == 200

        await eventually_async(is_ready, within_seconds=60)
        status, state = await get("/fleets/rl/policy/v1/rl/state")
        assert (status, json.loads(state)["weights"]["desired"]["version"]) == (200, "42")
        status, workers = await get("/fleets/rl/policy/v1/rl/workers")
        assert (status, len(json.loads(workers)["workers"])) == (200, 2)

    process.send_signal(signal.SIGTERM)
    _, log = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, log.decode()
    assert {json.loads(line)["level"] for line in log.decode().splitlines()} == {"INFO"}
    assert READER not in log.decode()
    assert "own-token" not in log.decode()
