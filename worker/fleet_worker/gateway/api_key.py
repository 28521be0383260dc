"""The optional key of the public port: vLLM's own (`--api-key`, `VLLM_API_KEY`), on all routes.

vLLM checks it only on paths that begin with `/v1`, `/v2`, `/inference` and `/cohere`, so `/tokenize`
and `/metrics` would be open. Here it covers every path except those of health checks.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from fleet_worker.http.asgi import Headers, header_of
from fleet_worker.http.errors import WireError

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})


class PublicKey:
    """The valid keys of the public port. Without keys the port is open to every client."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys if key]

    def check(self, path: str, headers: Headers) -> None:
        """Refuse a request without a valid key.

        Errors:
            WireError: 401.
        """
        if not self._digests or path in OPEN_PATHS:
            return
        scheme, _, key = (header_of(headers, b"authorization") or "").partition(" ")
        offered = _digest(key.strip())
        # Always compares every key, so that the time reveals nothing.
        found = False
        for digest in self._digests:
            found |= hmac.compare_digest(digest, offered)
        if not (found and scheme.lower() == "bearer"):
            raise WireError(
                401,
                "an API key is needed: Authorization: Bearer <key>",
                kind="AuthenticationError",
                headers=[(b"www-authenticate", b"Bearer")],
            )


def keys_of(arguments: Any, environment: Mapping[str, str]) -> list[str]:
    """Return the keys from vLLM's command line, or else from its environment."""
    return list(getattr(arguments, "api_key", None) or [environment.get("VLLM_API_KEY", "")])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
