"""Constants that the preStop hook shares with the protocol.

The hook has a few seconds before the container ends, so it must not import pydantic, as
`fleet_worker.protocol` does.
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_DRAIN_SECONDS = 86_400.0
DRAIN_PATH = "/v1/worker/drain"
ENV_ADMIN_HOST = "RLFLEET_ADMIN_HOST"
ENV_ADMIN_PORT = "RLFLEET_ADMIN_PORT"
"""Address and port of this worker's admin port."""
ENV_ADMIN_TOKEN_FILE = "RLFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - a path, not a secret
"""File with the bearer token of the admin port; read again when it changes."""
ENV_DRAIN_SECONDS = "RLFLEET_DRAIN_SECONDS"
"""Drain timeout in seconds: how long running requests may take to end before the worker does."""


def drain_seconds_of(environment: Mapping[str, str]) -> float:
    """The drain timeout of an environment, in seconds; 0 if it is missing or invalid."""
    try:
        seconds = float(environment.get(ENV_DRAIN_SECONDS) or 0)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= LONGEST_DRAIN_SECONDS else 0.0
