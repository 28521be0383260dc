"""`python -m fleet_worker drain`: the preStop hook. For speed it imports no third-party code."""

from __future__ import annotations

import http.client
import os
import sys
from pathlib import Path

from fleet_worker.drain_names import (
    DRAIN_PATH,
    ENV_ADMIN_HOST,
    ENV_ADMIN_PORT,
    ENV_ADMIN_TOKEN_FILE,
    drain_seconds_of,
)

_TIMEOUT_SECONDS = 10
"""How long the worker may take to answer, in addition to the drain timeout."""


def drain(host: str | None, port: int | None) -> int:
    """Ask the worker in this pod to drain and then to exit. Returns the hook's exit code."""
    host = host or os.environ.get(ENV_ADMIN_HOST) or "127.0.0.1"
    port = port or int(os.environ.get(ENV_ADMIN_PORT) or 8081)
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    try:
        token = Path(os.environ[ENV_ADMIN_TOKEN_FILE]).read_text().split()[0]
        patience = drain_seconds_of(os.environ) + _TIMEOUT_SECONDS
        connection = http.client.HTTPConnection(host, port, timeout=patience)
        headers = {"Authorization": f"Bearer {token}", "Content-Length": "0"}
        connection.request("POST", DRAIN_PATH, headers=headers)
        status = connection.getresponse().status
    except (KeyError, IndexError, OSError, http.client.HTTPException) as error:
        # A worker that is not up has no requests. Kubernetes sends SIGTERM in any case.
        print(  # noqa: T201 - output of a command
            f"the worker at {host}:{port} was not drained: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return 1
    return 0 if status == 200 else 1
