"""The optional key of the public port: vLLM's own (`--api-key`, `VLLM_API_KEY`), on all routes.

vLLM looks at it on paths that begin with `/v1`, `/v2`, `/inference` and `/cohere` only; `/tokenize`
or `/metrics` would be open. Here it covers everything but what tells that the server is alive.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from fleet_worker.wire.asgi import Headers, header_of
from fleet_worker.wire.errors import WireError

OPEN_PATHS = frozenset({"/livez", "/readyz", "/health", "/ping"})


class PublicKey:
    """The keys that open the public port; without any it is open to everybody who reaches it."""

    def __init__(self, keys: Iterable[str] = ()) -> None:
        self._digests = [_digest(key) for key in keys if key]

    def check(self, path: str, headers: Headers) -> None:
        """Make sure that a request may be served.

        Errors:
            WireError: 401.
        """
        if not self._digests or path in OPEN_PATHS:
            return
        scheme, _, key = (header_of(headers, b"authorization") or "").partition(" ")
        offered = _digest(key.strip())
        # Every key is compared, always: how long it takes says nothing.
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
    """The keys that vLLM was given, by its command line or else by its environment."""
    return list(getattr(arguments, "api_key", None) or [environment.get("VLLM_API_KEY", "")])


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
