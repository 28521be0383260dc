"""Run uvicorn for the admin port, in an event loop that already exists."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn

from fleet_worker.http.asgi import App
from fleet_worker.http.bounded_port import bound


class _Server(uvicorn.Server):  # type: ignore[misc]  # uvicorn has no types where ours are checked
    """Does not install signal handlers, because the process has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: App, listener: socket.socket, on_refused: Callable[[], None]) -> None:
    """Serve an ASGI application on a bound socket until cancelled. `on_refused`: see `Heads`."""
    settings: dict[str, Any] = {
        "lifespan": "off",
        "access_log": False,
        "log_config": None,
        "timeout_keep_alive": 75,
        "server_header": False,
    }
    config = uvicorn.Config(app, **settings)
    bound(config, on_refused)
    await _Server(config).serve(sockets=[listener])
