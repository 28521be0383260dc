"""uvicorn in an event loop that is not its own: the admin port's listener."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from fleet_worker.wire.asgi import App


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address, not listening yet.

    Bound before the engine starts, so that an address in use is found in the first second and not
    after minutes of loading.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        raise
    return bound


class _Server(uvicorn.Server):  # type: ignore[misc] # uvicorn has no types where ours are checked
    """Leaves the signals to whoever owns the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: App, listener: socket.socket) -> None:
    """Serve an ASGI application on a bound socket until cancelled."""
    settings: dict[str, Any] = {
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "timeout_keep_alive": 75,
        "server_header": False,
    }
    await _Server(uvicorn.Config(app, **settings)).serve(sockets=[listener])
