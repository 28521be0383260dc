"""Which headers of rollout clients cross, in both directions."""

from __future__ import annotations

from aiohttp import web
from multidict import CIMultiDict, CIMultiDictProxy

UPSTREAM_AUTHORIZATION = "X-Upstream-Authorization"
"""Header that becomes the `Authorization` for the worker, whose public port may have a key."""
_OWN_HEADERS = frozenset(
    {
        "authorization",
        "connection",
        "content-encoding",  # aiohttp decompresses the body
        "content-length",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "idempotency-key",
        "keep-alive",
        "referer",  # it may hold the key of a path
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        UPSTREAM_AUTHORIZATION.lower(),
    }
)
_OWN_PREFIXES = ("proxy-", "x-forwarded-", "x-rlfleet-")
_REPLY_HEADERS = frozenset({"content-encoding", "content-length", "content-type", "retry-after"})
"""Besides `x-…`: a tenant's image decides the rest, and clients share the address of all tenants."""

_STEERING_PREFIXES = ("x-accel-", "x-sendfile", "x-rlfleet-")
"""Not these: a proxy in front of the RL API, such as nginx, takes them for commands."""

ROUTED_PATHS = frozenset(
    {"/inference/v1/generate", "/v1/chat/completions", "/v1/completions", "/v1/models"}
)
"""Routes on which a router keeps the client's headers: session, key and version demand.

On other routes it drops them, so a worker would ignore a demand: they go to the Service.
Source: `vllm-router` 0.1.17, which `tests/contract/test_router_wheel.py` asks.
"""


def request_headers(request: web.Request, public_key: str | None) -> CIMultiDict[str]:
    """Headers for the worker: all except those of this connection and of the RL API.

    `public_key`: the key of the fleet's public port, for a client that sends none itself.
    """
    named = {n.strip().lower() for n in request.headers.get("Connection", "").split(",")}
    headers = CIMultiDict(
        (name, value)
        for name, value in request.headers.items()
        if name.lower() not in _OWN_HEADERS | named and not name.lower().startswith(_OWN_PREFIXES)
    )
    is_compressed = "Content-Encoding" in request.headers
    if request.content_length is not None and request.body_exists and not is_compressed:
        headers["Content-Length"] = str(request.content_length)
    if UPSTREAM_AUTHORIZATION in request.headers:
        headers["Authorization"] = request.headers[UPSTREAM_AUTHORIZATION]
    elif public_key is not None:
        headers["Authorization"] = f"Bearer {public_key}"
    return headers


def reply_headers(found: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """Headers for the client: the weights, and none that steer a browser or a proxy."""
    headers = CIMultiDict(
        (name, value)
        for name, value in found.items()
        if name.lower() in _REPLY_HEADERS
        or (name.lower().startswith("x-") and not name.lower().startswith(_STEERING_PREFIXES))
    )
    headers.update({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
    return headers
