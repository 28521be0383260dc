"""Names that the preStop hook shares with the protocol, apart from its records.

The hook has a few seconds of a container that is about to be ended: what it imports must not load
pydantic, as `fleet_worker.protocol` does.
"""

from __future__ import annotations

from collections.abc import Mapping

LONGEST_DRAIN_SECONDS = 86_400.0
DRAIN_PATH = "/v1/worker/drain"
ENV_ADMIN_HOST = "RLFLEET_ADMIN_HOST"
ENV_ADMIN_PORT = "RLFLEET_ADMIN_PORT"
"""Where this worker's admin port listens."""
ENV_ADMIN_TOKEN_FILE = "RLFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - a path, not a secret
"""File that holds the bearer token of the admin port; read again when it changes."""
ENV_DRAIN_SECONDS = "RLFLEET_DRAIN_SECONDS"
"""How long running requests may take to end when the worker is asked to end."""


def drain_seconds_of(environment: Mapping[str, str]) -> float:
    """The drain timeout that an environment names, in seconds; 0 if it names none or no number."""
    try:
        seconds = float(environment.get(ENV_DRAIN_SECONDS) or 0)
    except ValueError:
        return 0.0
    return seconds if 0 <= seconds <= LONGEST_DRAIN_SECONDS else 0.0
