"""A fake worker's admin port: the real port's application, with `FakeWorker`'s rules behind it."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Self

import httpx
from aiohttp import web
from tests.model.fake_agent import TICK_SECONDS, Call, FakeAgent
from tests.model.fake_worker import FakeWorker

from fleet_worker.admin.app import AdminApp
from fleet_worker.admin.guard import BearerFile, Guard
from fleet_worker.http.unauthenticated import Probes

__all__ = ["TICK_SECONDS", "Call", "FakeAdminPort"]

ANSWER_SECONDS = 3600.0
"""A held call lasts longer than any test."""


class FakeAdminPort:
    """One worker's port at an address of its own."""

    def __init__(self, worker: FakeWorker, address: str, port: int, token: str) -> None:
        self.address = address
        self._agent = FakeAgent(worker, _now)
        self._port = port
        self._token = token
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._inner: httpx.AsyncClient | None = None
        self._instance = ""
        self._runner: web.AppRunner | None = None

    @property
    def worker(self) -> FakeWorker:
        """The worker behind the port."""
        return self._agent.worker

    @property
    def calls(self) -> list[Call]:
        """The calls that came in."""
        return self._agent.calls

    async def open(self) -> Self:
        """Listen."""
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, self.address, self._port).start()
        return self

    async def close(self) -> None:
        """Listen no more: connections are refused."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()
        if self._inner is not None:
            await self._inner.aclose()
            self._inner = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    async def _handle(self, request: web.Request) -> web.Response:
        reply = await self._process().request(
            request.method,
            request.rel_url.raw_path_qs,
            content=await request.read(),
            headers=request.headers,
        )
        return web.Response(status=reply.status_code, body=reply.content, headers=reply.headers)

    def _process(self) -> httpx.AsyncClient:
        """The application of the process that runs now."""
        instance = self.worker.instance
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fake-admin-port-")
            Path(self._folder.name, "token").write_text(f"{self._token}\n")
        if self._inner is None or self._instance != instance:
            app = AdminApp(
                [self._agent.api()],
                guard=Guard(
                    BearerFile(Path(self._folder.name, "token")),
                    pod_uid=self.worker.uid,
                    instance=instance,
                ),
                probes=Probes(self._agent, lambda: None),
                on_refused=lambda _: None,
            )
            self._instance = instance
            self._inner = httpx.AsyncClient(
                transport=httpx.ASGITransport(app), base_url="http://worker", timeout=ANSWER_SECONDS
            )
        return self._inner


def _now() -> float:
    return asyncio.get_running_loop().time()
