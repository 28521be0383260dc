"""`python -m fleet_worker drain`: the preStop hook. Imports the standard library only: it is quick."""

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
"""How long an answer may take beyond the drain timeout."""


def drain(host: str | None, port: int | None) -> int:
    """Ask the worker in this pod to let its requests end, and to end itself; returns the exit code.


    Args:
        host: Of its admin port; None takes what the environment says.
        port: The same.
    """
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
        # A worker that is not up has nothing to drain; Kubernetes goes on to SIGTERM anyway.
        print(f"drain: {type(error).__name__}: {error}", file=sys.stderr)  # noqa: T201 - a command
        return 1
    return 0 if status == 200 else 1
