"""Names that the preStop hook shares with the protocol, apart from its records.

The hook has a few seconds of a container that is about to be ended: what it imports must not load
pydantic, as `fleet_worker.protocol` does.
"""

from __future__ import annotations

DRAIN_PATH = "/v1/worker/drain"
ENV_ADMIN_HOST = "RLFLEET_ADMIN_HOST"
ENV_ADMIN_PORT = "RLFLEET_ADMIN_PORT"
"""Where this worker's admin port listens."""
ENV_ADMIN_TOKEN_FILE = "RLFLEET_ADMIN_TOKEN_FILE"  # noqa: S105 - a path, not a secret
"""File that holds the bearer token of the admin port; read again when it changes."""
