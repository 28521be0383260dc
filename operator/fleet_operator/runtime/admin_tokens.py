"""Admin tokens of the fleets, as last read from their Secrets.

The last token stays in use until another one is read. A broken Secret therefore does not stop the
renewal of pauses.
"""

from __future__ import annotations

from collections.abc import Iterable

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.observed import FleetObserved
from fleet_operator.runtime.kube_secrets import KubeSecrets
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.store import FleetRecord


class AdminTokens:
    """Tokens by fleet. Each belongs to one uid of the fleet."""

    def __init__(self, secrets: KubeSecrets) -> None:
        self._secrets = secrets
        self._known: dict[FleetKey, tuple[str, str]] = {}
        self._stale: set[FleetKey] = set()

    def of(self, key: FleetKey, uid: str) -> str | None:
        """The last token; None if the Secret of this fleet's uid has not been read."""
        known_uid, token = self._known.get(key, ("", ""))
        return token if known_uid == uid else None

    def is_due(self, key: FleetKey, uid: str) -> bool:
        """Whether the Secret should be read: for the first time, or again."""
        return key in self._stale or self.of(key, uid) is None

    def note_stale(self, keys: Iterable[FleetKey]) -> None:
        """Read the Secrets of these fleets again."""
        self._stale |= set(keys)

    async def read(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> None:
        """Read a fleet's Secret, and create it if it does not exist. Errors: those of `KubeSecrets`."""
        bare = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
        )
        token = await self._secrets.ensure_token(bare, known=self.of(key, record.uid) or "")
        self._known[key] = (record.uid, token)
        self._stale.discard(key)

    def forget(self, key: FleetKey) -> None:
        """Forget a fleet that is gone."""
        self._known.pop(key, None)
        self._stale.discard(key)

    def __len__(self) -> int:
        return len(self._known)
