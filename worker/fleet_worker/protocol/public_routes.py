"""Routes of a worker's public port that clients call: those that need the model, and those of texts.

Source: route list of vLLM 0.32 (`vllm.entrypoints`), with all options on. `/v1/tokenize`,
`/v1/detokenize` and `/v1/chat/completions/tokens` are ours.
"""

from __future__ import annotations

TOKEN_ROUTE = "/inference/v1/generate"  # noqa: S105 - a path
"""The only route of vLLM that writes weight versions itself."""
DATA_ROUTES = frozenset(
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
"""They need the model, and are served only while the latch is open."""
READING_TEXT_ROUTES = frozenset({"/v1/models", "/version"})
"""`GET` without a body."""
TEXT_ROUTES = READING_TEXT_ROUTES | {
    "/detokenize",
    "/tokenize",
    "/v1/chat/completions/derender",
    "/v1/chat/completions/render",
    "/v1/completions/derender",
    "/v1/completions/render",
    "/v1/detokenize",
    "/v1/messages/count_tokens",
    "/v1/messages/render",
    "/v1/responses/render",
    "/v1/tokenize",
}
"""They need no weights."""
