"""`/livez` and `/readyz`: on the port of the API for load balancers, and on one of their own for the kubelet."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web


def add_health(app: web.Application, not_ready: Callable[[], str]) -> web.Application:
    """Add both routes. `not_ready`: returns why this replica is not ready; empty if it is."""

    async def livez(_: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_: web.Request) -> web.Response:
        problem = not_ready()
        return web.Response(status=503 if problem else 200, text=(problem or "ok") + "\n")

    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return app
