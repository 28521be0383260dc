"""Builds everything, serves, and ends in order."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from aiohttp import web

from fleet_api.admin_ports import AdminPorts
from fleet_api.app import application
from fleet_api.authentication import Authenticator
from fleet_api.authorization import Authorizer
from fleet_api.calls import Gate
from fleet_api.changes import Changes
from fleet_api.control import control_routes
from fleet_api.external import External
from fleet_api.fleets import Fleets
from fleet_api.keys import StaticKeys
from fleet_api.lifecycle import Lifecycle
from fleet_api.limits import Limits, Places, Rate
from fleet_api.managed import Managed
from fleet_api.mutations import Mutations
from fleet_api.ports import Cluster
from fleet_api.proxy import Proxy, Upstream, upstream_of
from fleet_api.reads import Reads
from fleet_api.routes import state_routes
from fleet_api.settings import Settings
from fleet_worker.logs import handler
from rlfleet.errors import NotConfigured
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import load_access

logger = logging.getLogger(__name__)

FIELD_MANAGER = "rlfleet-api"
EXIT_CANNOT_START = 2
SHUTDOWN_SECONDS = 10.0
"""Requests that are in work after the drain have so long to end."""


def build(
    settings: Settings, cluster: Cluster, lifecycle: Lifecycle, upstream: Upstream = upstream_of
) -> web.Application:
    """The application of one process. `upstream`: where requests of a fleet are passed on to."""
    fleets = Fleets(cluster)
    authenticator = Authenticator(
        cluster,
        StaticKeys(settings.keys_folder),
        monotonic=time.monotonic,
        audiences=settings.audiences,
    )
    gate = Gate(
        fleets,
        authenticator,
        Authorizer(cluster, monotonic=time.monotonic),
        monotonic=time.monotonic,
    )
    proxy = Proxy(upstream, most_bytes=settings.proxied_body_bytes)
    changes = Changes(cluster, lifecycle)
    workers = AdminPorts()
    external = External(
        frozenset(settings.external_fleets),
        cluster=cluster,
        reader=fleets,
        workers=workers,
        lifecycle=lifecycle,
    )
    table = (
        *state_routes(Reads(fleets), Mutations(changes)),
        *control_routes(Managed(fleets, changes), external),
        *proxy.routes(),
    )
    app = application(
        table,
        gate,
        limits=Limits(
            Rate(settings.requests_per_second, time.monotonic), Places(settings.concurrent_requests)
        ),
        proxied=Limits(
            Rate(settings.proxied_requests_per_second, time.monotonic),
            Places(settings.concurrent_proxied_requests),
        ),
        not_ready=lambda: "this replica stops" if lifecycle.stopping.is_set() else "",
    )

    async def close(_: web.Application) -> None:
        await workers.close()
        await proxy.close()

    app.on_cleanup.append(close)
    return app


async def run(settings: Settings) -> int:
    """Run the process. Returns: its exit code."""
    written = [handler(settings.log_format)]
    logging.basicConfig(level=settings.log_level, handlers=written, force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request at INFO
    try:
        access = load_access()
    except NotConfigured as error:
        logger.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    lifecycle = Lifecycle()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, lifecycle.stopping.set)
    kube = AsyncKube(access, FIELD_MANAGER)
    runner = web.AppRunner(
        build(settings, kube, lifecycle),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=SHUTDOWN_SECONDS,
    )
    try:
        await runner.setup()
        try:
            await web.TCPSite(runner, settings.host, settings.port).start()
        except OSError as error:
            logger.error("port %d is not available (%s)", settings.port, error.strerror)
            return EXIT_CANNOT_START
        logger.info("serving on port %d", settings.port)
        await lifecycle.stopping.wait()
        logger.info("stopping in %g s", settings.drain_seconds)
        await asyncio.sleep(settings.drain_seconds)
        return 0
    finally:
        lifecycle.ending.set()
        await runner.cleanup()
        await kube.close()
