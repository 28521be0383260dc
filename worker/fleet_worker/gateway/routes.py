"""The routes of the public port, and those that the latch guards.

The lists name the allowed routes. A route of a newer vLLM answers 404 until it is added here.

Source: route list of vLLM 0.32 (`vllm.entrypoints`), with all options on. `/v1/tokenize`,
`/v1/detokenize` and `/v1/chat/completions/tokens` are ours.
"""

from __future__ import annotations

from enum import Enum

from fleet_worker.engine.facts import TOKEN_ROUTE
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


_OPEN = frozenset(
    {
        "/detokenize",
        "/docs",
        "/health",
        "/load",
        "/metrics",
        "/metrics/",
        "/openapi.json",
        "/ping",
        "/tokenize",
        "/v1/chat/completions/derender",
        "/v1/chat/completions/render",
        "/v1/completions/derender",
        "/v1/completions/render",
        "/v1/detokenize",
        "/v1/messages/count_tokens",
        "/v1/messages/render",
        "/v1/models",
        "/v1/responses/render",
        "/v1/tokenize",
        "/version",
    }
)
_DATA = frozenset(
    {
        "/inference/v1/abort_requests",
        TOKEN_ROUTE,
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/chat/completions/tokens",
        "/v1/completions",
        "/v1/messages",
        "/v1/responses",
    }
)
_DIALECTS = {"/v1/responses": Dialect.RESPONSE, "/v1/messages": Dialect.MESSAGE}


def access_of(path: str) -> Access:
    """Return how the public port treats a path (without query and root path)."""
    if path in ("/livez", "/readyz"):
        return Access.PROBE
    if path in _OPEN:
        return Access.OPEN
    return Access.DATA if path in _DATA else Access.ABSENT


def dialect_of(path: str) -> Dialect:
    """Return where the replies of a route carry their spans."""
    return _DIALECTS.get(path, Dialect.CHOICES)


def stamps_itself(path: str) -> bool:
    """Return whether vLLM writes the spans into the replies of a route."""
    return path == TOKEN_ROUTE
