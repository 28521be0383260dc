"""The real `vllm-router`, with the arguments of our Deployment, before fake workers.

Each test is one of its traps (docs/how-to/route-requests.md).
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from aiohttp import web

import envs
from fleet_api.passed_headers import ROUTED_PATHS
from fleet_operator.api.router import Router
from fleet_operator.core.manifests.router import arguments
from fleet_worker.protocol import DATA_ROUTES, READING_TEXT_ROUTES, TEXT_ROUTES
from free_ports import free_port

CHAT = "/v1/chat/completions"
BODY = {"model": "policy", "messages": []}
ABSENT = "http://policy-9.invalid:8000"
SECONDS = 30
START_SECONDS = 150
"""The imports of the program's launcher took more than 30 s on busy cores."""


@dataclass
class FakeWorker:
    """Answers everything with `status`, and `/readyz` by `ready`."""

    name: str
    ready: bool = True
    status: int = 200
    seen: list[web.Request] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    url: str = ""

    async def answer(self, request: web.Request) -> web.Response:
        if request.path in {"/readyz", "/health"}:
            return web.Response(status=200 if self.ready else 503)
        self.seen.append(request)
        self.bodies.append(await request.read())
        headers = {"x-weight-version": "7"} | ({"retry-after": "1"} if self.status > 200 else {})
        return web.json_response({"name": self.name}, status=self.status, headers=headers)


@dataclass
class Routed:
    workers: list[FakeWorker]
    client: httpx.AsyncClient

    async def ask(self, path: str = CHAT, session: str = "s", **headers: str) -> httpx.Response:
        named = {"X-Session-ID": session} | {k.replace("_", "-"): v for k, v in headers.items()}
        return await self.client.post(path, json=BODY | {"weight_version_min": "7"}, headers=named)

    async def server_of(self, session: str) -> str:
        return str((await self.ask(session=session)).json()["name"])

    @property
    def seen(self) -> list[web.Request]:
        return [request for worker in self.workers for request in worker.seen]

    async def until_ready(self, count: int) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            try:
                found = (await self.client.get("/readiness")).json()
            except (httpx.TransportError, ValueError):
                found = {}
            if found.get("healthy_workers", 0) == count:
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"the router does not see {count} ready workers")


@pytest.fixture
async def routed(tmp_path: Path) -> AsyncIterator[Routed]:
    workers, runners = [FakeWorker("a"), FakeWorker("b")], []
    for worker in workers:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", worker.answer)
        runners.append(runner := web.AppRunner(app, access_log=None))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        worker.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    port, metrics = free_port(), free_port()
    given = arguments(Router(image="x"), [*(w.url for w in workers), ABSENT], port)
    given[given.index("--prometheus-port") + 1] = str(metrics)  # several tests run at once
    program = envs.interpreter_of("router").with_name("vllm-router")
    log = (tmp_path / "log").open("wb")
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    process = await asyncio.create_subprocess_exec(
        program, *given, stdout=log, stderr=log, env=environment
    )
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=SECONDS) as client:
        made = Routed(workers, client)
        try:
            await made.until_ready(2)
            yield made
        finally:
            process.kill()
            await process.wait()
            log.close()
            for runner in runners:
                await runner.cleanup()


async def test_the_turns_of_a_session_reach_one_worker_and_sessions_are_spread(
    routed: Routed,
) -> None:
    found = [{await routed.server_of(f"s{n}") for _ in range(3)} for n in range(6)]

    assert all(len(servers) == 1 for servers in found)
    assert sorted(min(servers) for servers in found) == ["a", "a", "a", "b", "b", "b"]


async def test_the_rl_api_uses_a_router_for_the_routes_whose_headers_it_keeps(
    routed: Routed,
) -> None:
    sent = {"x-session-id", "x-weight-version-min", "authorization"}
    body = BODY | {"prompt": "x", "input": "x", "token_ids": [1], "weight_version_min": "7"}
    for path in sorted(DATA_ROUTES | TEXT_ROUTES):
        method = "GET" if path in READING_TEXT_ROUTES else "POST"
        await routed.client.request(
            method, path, json=body if method == "POST" else None, headers=dict.fromkeys(sent, "7")
        )
    whole = {
        request.path
        for worker in routed.workers
        for request, content in zip(worker.seen, worker.bodies, strict=True)
        if sent <= {name.lower() for name in request.headers}
        and (not content or "weight_version_min" in json.loads(content))
    }

    assert whole == ROUTED_PATHS


async def test_a_closed_latch_does_not_keep_a_worker_out_when_it_is_open_again(
    routed: Routed,
) -> None:
    home = await routed.server_of("s")
    for worker in routed.workers:
        worker.status = 429
    refusals = [(await routed.ask()).status_code for _ in range(4)]  # five tries each
    for worker in routed.workers:
        worker.status = 200

    assert refusals == [429] * 4
    assert await routed.server_of("s") == home


async def test_a_worker_that_is_not_ready_gets_no_requests_until_it_is(routed: Routed) -> None:
    home = await routed.server_of("s")
    worker = next(w for w in routed.workers if w.name == home)
    worker.ready = False
    await routed.until_ready(1)
    elsewhere = await routed.server_of("s")
    worker.ready = True
    await routed.until_ready(2)

    assert elsewhere != home


async def test_a_409_reaches_the_client_with_its_headers_after_one_try(routed: Routed) -> None:
    for worker in routed.workers:
        worker.status = 409
    reply = await routed.ask()

    assert (reply.status_code, reply.headers["retry-after"]) == (409, "1")
    assert reply.headers["x-weight-version"] == "7"
    assert len(routed.seen) == 1


async def test_a_control_call_reaches_one_worker_without_its_query(routed: Routed) -> None:
    """Why the public port refuses every control route."""
    await routed.client.post("/pause?mode=keep")

    assert [r.path_qs for r in routed.seen] == ["/pause"]
