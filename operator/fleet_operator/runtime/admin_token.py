"""The admin token of a fleet, as last read from its Secret.

The last token stays in use until another one is read. A broken Secret therefore does not stop the
renewal of pauses.
"""

from __future__ import annotations

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.observed import FleetObserved
from fleet_operator.runtime.kube_secrets import KubeSecrets
from fleet_operator.runtime.pod_informer import FleetKey
from fleet_operator.runtime.store import FleetRecord


class AdminToken:
    """The token of one fleet.

    Fields:
        last: the last one; None if the Secret has not been read.
    """

    def __init__(self, secrets: KubeSecrets) -> None:
        self._secrets = secrets
        self._stale = False
        self.last: str | None = None

    @property
    def is_due(self) -> bool:
        """Whether the Secret should be read: for the first time, or again."""
        return self._stale or self.last is None

    def note_stale(self) -> None:
        """Read the Secret again."""
        self._stale = True

    async def read(self, key: FleetKey, record: FleetRecord, spec: FleetSpec) -> None:
        """Read the fleet's Secret, and create it if it does not exist. Errors: those of `KubeSecrets`."""
        bare = FleetObserved(
            name=key[1],
            namespace=key[0],
            uid=record.uid,
            generation=record.generation,
            spec=spec,
        )
        self.last = await self._secrets.ensure_token(bare, known=self.last or "")
        self._stale = False
