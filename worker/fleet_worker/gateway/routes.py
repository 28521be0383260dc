"""The routes of the public port, and those that the latch guards.

The lists here and in `protocol.public_routes` name the allowed routes. A route of a newer vLLM answers
404 until it is added there.
"""

from __future__ import annotations

from enum import Enum

from fleet_worker.protocol import DATA_ROUTES, TEXT_ROUTES, TOKEN_ROUTE
from fleet_worker.provenance.spans import Dialect


class Access(Enum):
    """How the public port treats a path."""

    PROBE = "probe"
    """The worker itself answers."""
    OPEN = "open"
    """Needs no weights, so it is served behind a closed latch too."""
    DATA = "data"
    """Needs the model, and is served only while the latch is open."""
    ABSENT = "absent"
    """Answers 404."""


_OPEN = TEXT_ROUTES | {
    "/docs",
    "/health",
    "/load",
    "/metrics",
    "/metrics/",
    "/openapi.json",
    "/ping",
}
_DIALECTS = {"/v1/responses": Dialect.RESPONSE, "/v1/messages": Dialect.MESSAGE}


def access_of(path: str) -> Access:
    """Return how the public port treats a path (without query and root path)."""
    if path in ("/livez", "/readyz"):
        return Access.PROBE
    if path in _OPEN:
        return Access.OPEN
    return Access.DATA if path in DATA_ROUTES else Access.ABSENT


def dialect_of(path: str) -> Dialect:
    """Return where the replies of a route carry their spans."""
    return _DIALECTS.get(path, Dialect.CHOICES)


def stamps_itself(path: str) -> bool:
    """Return whether vLLM writes the spans into the replies of a route."""
    return path == TOKEN_ROUTE
