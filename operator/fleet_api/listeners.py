"""The ports of the process."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from fleet_api.connections import RECEIVED_BYTES
from fleet_api.heads import Heads
from fleet_api.settings import Settings
from fleet_api.tls import Certificate
from fleet_api.whole_body import READ_BYTES
from fleet_operator.own_ports.bounded_site import METRICS, PROBES, BoundedSite

BACKLOG = 128
HANDSHAKE_SECONDS = 10.0
"""Connections in the handshake of TLS are not among the limited ones."""
SHUTDOWN_SECONDS = 10.0
"""How long requests that still run after the drain may take to end."""


class CannotListenError(Exception):
    """A port or the certificate is not usable."""


class _Unquoted(logging.Filter):
    """Takes the text of a client out of the server's lines.

    aiohttp quotes a request that is not HTTP, and its path or its header may hold a key.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError):
            record.msg = f"a request from %s is not HTTP: {type(error).__name__}"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
            record.exc_info = None
        return True


_connections = logging.getLogger(f"{__name__}.connections")
_connections.addFilter(_Unquoted())


@asynccontextmanager
async def listening(
    app: web.Application,
    metrics: web.Application,
    probes: web.Application,
    settings: Settings,
    *,
    on_refused: Callable[[], None] = lambda: None,
) -> AsyncIterator[None]:
    """Serve the applications while the block runs. `on_refused`: see `Heads`. Errors: CannotListenError."""
    tls = _certificate(settings)
    heads = Heads(on_refused)
    app.middlewares.insert(0, heads.middleware)
    async with AsyncExitStack() as stack:
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_connections,
            handler_cancellation=True,
            shutdown_timeout=SHUTDOWN_SECONDS,
            read_bufsize=READ_BYTES,
        )
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        with _explaining(settings.port):
            make = cast("web.Server", runner.server)  # of a runner that is set up
            server = await asyncio.get_running_loop().create_server(
                lambda: heads.connection(make()),
                settings.host,
                settings.port,
                ssl=tls.context if tls else None,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if tls else None,
                backlog=BACKLOG,
            )
        stack.callback(server.close)
        for each in server.sockets:  # their connections inherit it
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        for own, port, bounds in (
            (metrics, settings.metrics_port, METRICS),
            (probes, settings.probe_port, PROBES),
        ):
            if port:
                with _explaining(port):
                    site = await BoundedSite.start(own, port, bounds)
                stack.push_async_callback(site.cleanup)
        yield


@contextmanager
def _explaining(port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CannotListenError(f"port {port} is not available ({error.strerror})") from error


def _certificate(settings: Settings) -> Certificate | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None or settings.tls_key is None:
        raise CannotListenError("a certificate needs its key: set both --tls-cert and --tls-key")
    try:
        return Certificate(settings.tls_cert, settings.tls_key)
    except OSError as error:
        raise CannotListenError(
            f"the certificate {settings.tls_cert} and its key {settings.tls_key} cannot be loaded ({error})"
        ) from error
