"""What the public port serves, and which of it the latch guards.

The list says what is open, not what is shut: a route that a new vLLM brings is unknown here and
therefore answers 404 until somebody has looked at it.

Source: route list of vLLM 0.32 (`vllm.entrypoints`), all gates; `/v1/tokenize`, `/v1/detokenize` and
`/v1/chat/completions/tokens` are ours.
"""

from __future__ import annotations

from enum import Enum

from fleet_worker.core.spans import Dialect

TOKEN_ROUTE = "/inference/v1/generate"  # noqa: S105 - a path
"""The one of vLLM's routes that writes weight versions by itself."""


class Access(Enum):
    """How the public port treats a path."""

    PROBE = "probe"
    """Answered by the worker itself."""
    OPEN = "open"
    """Tells about the server or the tokenizer; needs no weights, so the latch does not matter."""
    DATA = "data"
    """Asks the model for something; only while the latch is open."""
    ABSENT = "absent"
    """Not served: 404."""


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
    """How the public port treats a path (without query and root path)."""
    if path in ("/livez", "/readyz"):
        return Access.PROBE
    if path in _OPEN:
        return Access.OPEN
    return Access.DATA if path in _DATA else Access.ABSENT


def dialect_of(path: str) -> Dialect:
    """Where the replies of a route carry their spans."""
    return _DIALECTS.get(path, Dialect.CHOICES)


def stamps_itself(path: str) -> bool:
    """Whether vLLM writes the spans into the replies of a route."""
    return path == TOKEN_ROUTE
