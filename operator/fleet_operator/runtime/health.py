"""The operator's own port: /metrics, /livez and /readyz.

Live: the event loop runs, and a leader works on its queue. Ready: this process leads with filled
caches, or is a standby, so that a Deployment with a standby is complete. A ready process may have a warning.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fleet_operator.errors import Terminal
from fleet_operator.runtime.metrics import Metrics

Check = Callable[[], str]
"""Returns the problem; empty without one."""


async def serve(
    port: int, metrics: Metrics, *, live: Check, ready: Check, warning: Check = str
) -> web.AppRunner:
    """Start listening. The caller cleans up the runner.

    `warning`: what `/readyz` says of a process that is ready.

    Errors: Terminal if the port is not available.
    """

    async def show_metrics(_: web.Request) -> web.Response:
        headers = {"Content-Type": metrics.content_type}
        return web.Response(body=metrics.render(), headers=headers)

    async def livez(_: web.Request) -> web.Response:
        return _answer(live())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready(), warning())

    app = web.Application()
    app.router.add_get("/metrics", show_metrics)
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, port=port).start()
    except OSError as error:
        await runner.cleanup()
        raise Terminal(
            f"port {port} is not available ({error.strerror}): choose another one with --port"
        ) from error
    return runner


def _answer(problem: str, warning: str = "") -> web.Response:
    well = f"ok\nwarning: {warning}" if warning else "ok"
    return web.Response(status=503 if problem else 200, text=(problem or well) + "\n")
