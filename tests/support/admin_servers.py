"""Admin ports of workers over fake engines, behind real sockets: for clients of many workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx
from aiohttp import web
from aiohttp.test_utils import TestServer, unused_port
from tests.support.admin_ports import TrainerPort
from tests.support.worker_harness import start_worker

from fleet_worker import protocol

TOKEN = "the-token-of-this-fleet"


class AdminServer:
    """One worker that serves. Its pod has the address `127.0.0.<number + 1>`."""

    def __init__(self, admin: TrainerPort, number: int, port: int) -> None:
        self.admin = admin
        self.address = f"127.0.0.{number + 1}"
        self.calls: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        """The headers of all calls, with names in lower case."""
        self.gets_everything_twice = False
        """The reply to the first one of two is lost."""
        self.says: dict[str, bytes] = {}
        """Signed answers of another image, by path."""
        self._inner = httpx.AsyncClient(
            transport=httpx.ASGITransport(admin.app), base_url="http://worker"
        )
        app = web.Application(client_max_size=32 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._server = TestServer(app, host=self.address, port=port)

    async def __aenter__(self) -> Self:
        await self._server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
        await self._inner.aclose()

    async def close(self) -> None:
        """Listen no more."""
        await self._server.close()

    async def _handle(self, request: web.Request) -> web.Response:
        self.calls.append((request.method, request.rel_url.raw_path_qs))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        content = await request.read()
        if (said := self.says.get(request.path)) is not None:
            call = request.headers["Authorization"].partition(" ")[2]
            signature = protocol.answer_signature(TOKEN, call=call, status=200, body=said)
            return web.Response(body=said, headers={protocol.HEADER_SIGNATURE: signature})
        for _ in range(2 if self.gets_everything_twice else 1):
            reply = await self._inner.request(
                request.method,
                request.rel_url.raw_path_qs,
                content=content,
                headers=request.headers,
            )
        return web.Response(status=reply.status_code, body=reply.content, headers=reply.headers)


@asynccontextmanager
async def admin_servers(
    folder: Path, number: int, **options: Any
) -> AsyncIterator[tuple[list[AdminServer], int]]:
    """A number of workers with one folder of weights, and the port that all of them have.

    `options`: of their trainers' harness.
    """
    port = unused_port()
    async with AsyncExitStack() as stack:
        made = []
        for ordinal in range(number):
            harness = await stack.enter_async_context(start_worker(folder))
            await harness.admit("base")
            harness.engine.calls.clear()
            admin = TrainerPort(harness, folder, **options)
            admin.token_file.write_text(f"{TOKEN}\n")
            stack.push_async_callback(admin.client.aclose)
            made.append(await stack.enter_async_context(AdminServer(admin, ordinal, port)))
        yield made, port
