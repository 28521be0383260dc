"""The operator's own ports: /livez and /readyz on one, /metrics on another.

Live: the event loop runs, and a leader works on its queue. Ready: this process leads with filled
caches, or is a standby, so that a Deployment with a standby is complete. A ready process may have a warning.

Every client that reaches the pod reaches both ports. So both are bounded (`bounded_site`), and readers of
metrics do not delay probes.
"""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from fleet_operator.errors import Terminal
from fleet_operator.own_ports.bounded_site import METRICS, PROBES, BoundedSite, Bounds
from fleet_operator.own_ports.metrics_page import MetricsPage
from fleet_operator.runtime.metrics import Metrics

Check = Callable[[], str]
"""Returns the problem; empty without one."""


async def serve_probes(
    port: int, *, live: Check, ready: Check, warning: Check = str
) -> BoundedSite:
    """Answer probes. The caller cleans up.

    `warning`: what `/readyz` says of a process that is ready.

    Errors: Terminal if the port is not available.
    """

    async def livez(_: web.Request) -> web.Response:
        return _answer(live())

    async def readyz(_: web.Request) -> web.Response:
        return _answer(ready(), warning())

    app = web.Application()
    app.router.add_get("/livez", livez)
    app.router.add_get("/readyz", readyz)
    return await _listen(app, port, PROBES, "--probe-port")


async def serve_metrics(port: int, metrics: Metrics) -> BoundedSite:
    """Serve `/metrics`. The caller cleans up. Errors: Terminal if the port is not available."""
    page = MetricsPage(metrics.prepare)
    return await _listen(page.application(), port, METRICS, "--metrics-port")


async def _listen(app: web.Application, port: int, bounds: Bounds, flag: str) -> BoundedSite:
    try:
        return await BoundedSite.start(app, port, bounds)
    except OSError as error:
        raise Terminal(
            f"port {port} is not available ({error.strerror}): choose another one with {flag}"
        ) from error


def _answer(problem: str, warning: str = "") -> web.Response:
    well = f"ok\nwarning: {warning}" if warning else "ok"
    return web.Response(status=503 if problem else 200, text=(problem or well) + "\n")
