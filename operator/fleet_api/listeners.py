"""The ports of the process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from fleet_api.settings import Settings
from fleet_api.tls import Certificate

SHUTDOWN_SECONDS = 10.0
"""How long requests that still run after the drain may take to end."""


class CannotListenError(Exception):
    """A port or the certificate is not usable."""


@asynccontextmanager
async def listening(
    app: web.Application, metrics: web.Application, settings: Settings
) -> AsyncIterator[None]:
    """Serve both applications while the block runs. Errors: CannotListenError."""
    tls = _certificate(settings)
    async with AsyncExitStack() as stack:
        for served, port, context in (
            (app, settings.port, tls.context if tls else None),
            (metrics, settings.metrics_port, None),
        ):
            if not port:
                continue
            runner = web.AppRunner(
                served,
                access_log=None,
                handler_cancellation=True,
                shutdown_timeout=SHUTDOWN_SECONDS,
            )
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            try:
                await web.TCPSite(runner, settings.host, port, ssl_context=context).start()
            except OSError as error:
                raise CannotListenError(
                    f"port {port} is not available ({error.strerror})"
                ) from error
        yield


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
