"""The token of a fleet's admin ports, as last read from its Secret.

The last token stays in use until another one is read. A broken Secret therefore does not stop the
renewal of pauses.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable

from fleet_operator.core.manifests.children import admin_token_secret
from fleet_operator.core.observed import FleetObserved
from fleet_operator.errors import NotFound, Retryable, TokenUnusable
from fleet_operator.ports import Kube
from fleet_operator.runtime.ownership import fleet_lives
from rlfleet_resources import names

TOKEN_BYTES = 32


class AdminToken:
    """The token of one fleet. `on_write` counts writes.

    Fields:
        last: the last one; None if the Secret has not been read.
    """

    def __init__(self, kube: Kube, on_write: Callable[[], None]) -> None:
        self._kube = kube
        self._on_write = on_write
        self._stale = False
        self.last: str | None = None

    @property
    def is_due(self) -> bool:
        """Whether the Secret should be read: for the first time, or again."""
        return self._stale or self.last is None

    def note_stale(self) -> None:
        """Read the Secret again."""
        self._stale = True

    async def read(self, observed: FleetObserved) -> None:
        """Read the fleet's Secret, and create it if it does not exist. A Secret that is gone gets the last token,
        which the workers have.

        Errors: Retryable if the Secret does not exist, and the fleet neither. Also while the Secret of
        an earlier fleet of this name waits for the garbage collector, since pods that mount it would wait
        forever. TokenUnusable if the Secret holds no
        usable token.
        """
        namespace, name = observed.namespace, names.admin_token_secret_name(observed.name)
        collection = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            secret = await self._kube.get(f"{collection}/{name}")
        except NotFound:
            token = self.last or secrets.token_urlsafe(TOKEN_BYTES)
            manifest = admin_token_secret(observed, token)
            (owner,) = manifest["metadata"]["ownerReferences"]
            if not await fleet_lives(self._kube, namespace, owner):
                raise Retryable(
                    f"InferenceFleet {observed.name} is gone or being deleted, so it gets no Secret {name}"
                ) from None
            self._on_write()
            secret = await self._kube.create(collection, manifest)
        owners = secret["metadata"].get("ownerReferences", ())
        if any(o["kind"] == names.FLEET_KIND and o["uid"] != observed.uid for o in owners):
            raise Retryable(f"Secret {name} belongs to an earlier fleet of this name")
        if names.ADMIN_TOKEN_KEY not in secret.get("data", {}):
            raise TokenUnusable(
                f"Secret {name} has no key {names.ADMIN_TOKEN_KEY!r}: delete the Secret, and the "
                "operator creates a new one"
            )
        token = _first_line(secret["data"][names.ADMIN_TOKEN_KEY])
        if not (token.isascii() and token.isprintable() and token):
            raise TokenUnusable(
                f"Secret {name} holds no token that fits into an HTTP header: delete the Secret, and the "
                "operator creates a new one"
            )
        self.last = token
        self._stale = False


def _first_line(encoded: str) -> str:
    """The token to send, from the first line that is not empty. Workers accept the token of every line,
    so that tokens can be rotated without a gap.
    """
    lines = base64.b64decode(encoded).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")
