"""`/metrics` of a process, rendered in a thread: one page at a time, at most once a second, and for a tenth of the
time at most. Requests in between get the last page.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aiohttp import web
from prometheus_client.exposition import CONTENT_TYPE_LATEST

RENDER_SECONDS = 1.0
BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900)
"""Of all histograms of our processes, in seconds."""
_REST = 9
"""Times of the last rendering that pass before the next one."""


class MetricsPage:
    """The page. `prepare` runs in the event loop, and returns what renders the page in a thread."""

    def __init__(self, prepare: Callable[[], Callable[[], bytes]]) -> None:
        self._prepare = prepare
        self._rendering: asyncio.Task[bytes] | None = None
        self._due = 0.0

    async def body(self) -> bytes:
        """The page, which is at most as old as the pace allows."""
        now = asyncio.get_running_loop().time()
        if self._rendering is None or (self._rendering.done() and now >= self._due):
            self._rendering = asyncio.create_task(self._render())
        # The rendering continues if the client ends: others may wait for it.
        return await asyncio.shield(self._rendering)

    def application(self) -> web.Application:
        """Serves `/metrics`."""

        async def show(_: web.Request) -> web.Response:
            return web.Response(
                body=await self.body(), headers={"Content-Type": CONTENT_TYPE_LATEST}
            )

        app = web.Application()
        app.router.add_get("/metrics", show)
        return app

    async def _render(self) -> bytes:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            return await asyncio.to_thread(self._prepare())
        finally:
            now = clock()
            self._due = now + max(RENDER_SECONDS, _REST * (now - began))
