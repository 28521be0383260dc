"""Runs an operator process from its settings: logs, clients, the Lease's thread, and the exit code."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from fleet_operator.clients.kube import KubeClient
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.errors import FleetError, Terminal
from fleet_operator.runtime import logs
from fleet_operator.runtime.lease_thread import LeaseThread
from fleet_operator.runtime.loop_lag import LoopLag
from fleet_operator.runtime.operator_process import Operator, take_signals
from fleet_operator.runtime.settings import Settings
from fleet_operator.runtime.traces import RolloutTraces

logger = logging.getLogger(__name__)

EXIT_CANNOT_START = 2


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop]:
    """The factory of the process's event loop: uvloop where it is installed, else that of the standard library.

    The operator's image has uvloop: a call to a worker takes less processor time with it
    (docs/decisions/0028-uvloop-where-it-is-installed.md). Nothing depends on it. The Lease's thread uses the
    standard library's: it sends one request every few seconds.
    """
    try:
        import uvloop  # noqa: PLC0415 - not needed to run
    except ImportError:
        return asyncio.new_event_loop
    return uvloop.new_event_loop


def _tracing(endpoint: str, stack: AsyncExitStack) -> RolloutTraces | None:
    """Spans for this endpoint, the last of which leave when the stack ends; None without an endpoint.

    Errors: Terminal without OpenTelemetry.
    """
    if not endpoint:
        return None
    try:
        from fleet_operator.runtime.tracing import Tracing  # noqa: PLC0415 - not needed to run
    except ImportError as error:
        raise Terminal(
            f"--otlp-endpoint needs OpenTelemetry, install rlfleet-server[tracing]: {error}"
        ) from error
    tracing = Tracing.to_endpoint(endpoint)
    stack.push_async_callback(asyncio.to_thread, tracing.shut_down)
    return tracing


async def run(settings: Settings) -> int:
    """Run an operator process. Returns: its exit code."""
    logs.set_up(log_format=settings.log_format, log_level=settings.log_level)
    stop = asyncio.Event()
    take_signals(stop)
    try:
        async with AsyncExitStack() as stack:
            traces = _tracing(settings.otlp_endpoint, stack)
            kube, workers = await KubeClient.connect(), WorkerClient()
            for client in (kube, workers):
                stack.push_async_callback(client.close)
            lease = await LeaseThread.start(
                KubeClient.connect,
                namespace=settings.lease_namespace,
                name=settings.lease_name,
                identity=settings.identity,
            )
            stack.push_async_callback(lease.stop)
            operator, lag = Operator(settings, kube, workers, lease, traces), LoopLag()
            operator.metrics.loop_lag.set_function(lag.worst_seconds)
            operator.metrics.loop_busy.set_function(lag.worst_busy_seconds)
            sampling = asyncio.create_task(lag.run(), name="loop lag")
            stack.callback(sampling.cancel)
            return await operator.run(stop)
    except Terminal as error:
        logger.error("cannot start: %s", error)
        return EXIT_CANNOT_START
    except FleetError as error:
        logger.error("%s", error)
        return 1
