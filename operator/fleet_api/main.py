"""Builds the application, serves it, and shuts it down."""

from __future__ import annotations

import asyncio
import logging
import signal
import time

from aiohttp import web

from fleet_api.admin_ports import AdminPorts
from fleet_api.api_server import ApiServer
from fleet_api.app import application
from fleet_api.authentication import MAX_REVIEWS_AT_ONCE, Authenticator
from fleet_api.authorization import Authorizer
from fleet_api.calls import Admission
from fleet_api.changes import Changes
from fleet_api.control import control_routes
from fleet_api.destinations import Destinations
from fleet_api.events import Events
from fleet_api.external import External
from fleet_api.fleets import Fleets
from fleet_api.grants import Grants
from fleet_api.health import add_health
from fleet_api.keys import PublicKeys, StaticKeys
from fleet_api.lifecycle import Lifecycle
from fleet_api.limits import CREDENTIALS_OF_ONE_TENANT, Limits, Rate, Slots, Waits
from fleet_api.listeners import CannotListenError, listening
from fleet_api.loop_time import LoopTime
from fleet_api.managed import Managed
from fleet_api.metrics import Metrics
from fleet_api.ports import Cluster
from fleet_api.proxy import Proxy
from fleet_api.reads import Reads
from fleet_api.routes import state_routes
from fleet_api.settings import Settings
from fleet_api.worker_metrics import WorkerMetrics
from fleet_operator.clients.bounded_json import read_message
from fleet_operator.places import Places
from fleet_worker.logs import handler
from rlfleet.errors import NotConfigured
from rlfleet.kubeconfig import load_access

logger = logging.getLogger(__name__)

FIELD_MANAGER = "rlfleet-api"
EXIT_CANNOT_START = 2
MAX_ANSWER_BYTES = 4 * 1024 * 1024
"""Largest answer of the API server: a table of some thousand rows, or `PODS_OF_A_PAGE` of usual pods."""
READS_AT_ONCE = 8
"""Answers of the API server that are in memory at once, in turns by namespace."""


def build(
    settings: Settings, cluster: Cluster, lifecycle: Lifecycle, metrics: Metrics
) -> web.Application:
    """The application of one process."""
    streams = Slots(
        settings.event_streams,
        metrics.streams.set,
        what="streams of events are open",
        flag="--event-streams",
    )
    places = Places(READS_AT_ONCE)
    fleets = Fleets(cluster, places)
    reviews = Places(MAX_REVIEWS_AT_ONCE)
    authenticator = Authenticator(
        cluster,
        StaticKeys(settings.keys_folder),
        reviews,
        monotonic=time.monotonic,
        audiences=settings.audiences,
        metrics=metrics,
        unknown_per_second=settings.unknown_tokens_per_second,
    )
    admission = Admission(
        fleets,
        authenticator,
        Authorizer(cluster, reviews, monotonic=time.monotonic),
        bodies=Slots(
            settings.body_bytes, what="bytes of bodies are in memory", flag="--body-bytes"
        ),
        refused=Rate(settings.requests_per_second, time.monotonic),
        loop_time=LoopTime(time.monotonic),
        monotonic=time.monotonic,
    )
    proxy = Proxy(
        Destinations(cluster, places, time.monotonic),
        keys=PublicKeys(settings.public_keys_folder),
        max_bytes=settings.proxied_body_bytes,
    )
    waits = Waits(
        Slots(
            settings.concurrent_waits,
            metrics.in_work.labels("waiting").set,
            what="requests wait",
            flag="--concurrent-waits",
        )
    )
    changes = Changes(cluster, lifecycle, waits)
    workers = AdminPorts()
    worker_metrics = WorkerMetrics(fleets)
    grants = Grants(settings.external_fleets, cluster, places)
    external = External(
        grants,
        reader=fleets,
        workers=workers,
        lifecycle=lifecycle,
        waits=waits,
    )
    table = (
        *state_routes(Reads(fleets, grants), changes, Events(cluster, lifecycle, streams)),
        *control_routes(Managed(fleets, changes), external),
        worker_metrics.route(),
        *proxy.routes(),
    )
    app = application(
        table,
        admission,
        arriving=Slots(
            settings.concurrent_requests + settings.concurrent_proxied_requests,
            metrics.in_work.labels("arriving").set,
            what="requests are not authorized yet",
            owner="this sender",
        ),
        limits=_limits(
            settings.requests_per_second,
            "--requests-per-second",
            Slots(settings.concurrent_requests, metrics.in_work.labels("own").set),
        ),
        proxied=_limits(
            settings.proxied_requests_per_second,
            "--proxied-requests-per-second",
            Slots(
                settings.concurrent_proxied_requests,
                metrics.in_work.labels("proxied").set,
                flag="--concurrent-proxied-requests",
            ),
        ),
        not_ready=lifecycle.not_ready,
        metrics=metrics,
    )

    async def close(_: web.Application) -> None:
        await workers.close()
        await proxy.close()
        await worker_metrics.close()

    app.on_cleanup.append(close)
    return app


def _limits(per_second: float, flag: str, slots: Slots) -> Limits:
    of_tenant = per_second * CREDENTIALS_OF_ONE_TENANT
    return Limits(
        Rate(per_second, time.monotonic, flag=flag),
        Rate(of_tenant, time.monotonic, subject="namespace", flag=flag),
        slots,
    )


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
    kube = ApiServer(access, FIELD_MANAGER, MAX_ANSWER_BYTES, read_message)
    metrics = Metrics()
    app = build(settings, kube, lifecycle, metrics)
    probes = add_health(web.Application(), lifecycle.not_ready)
    try:
        refused = metrics.refused_connections.inc
        page = metrics.application()
        async with listening(app, page, probes, settings, on_refused=refused):
            try:
                logger.info("serving on port %d", settings.port)
                await lifecycle.stopping.wait()
                logger.info("stopping in %g s", settings.drain_seconds)
                await asyncio.sleep(settings.drain_seconds)
            finally:
                lifecycle.ending.set()
    except CannotListenError as error:
        logger.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    else:
        return 0
    finally:
        await kube.close()
