"""Replaces the operator's fields of one status in the API server, and reads them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from fleet_operator.api import names
from fleet_operator.api.fleet_status import FleetStatus
from fleet_operator.errors import NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.managed_fields import is_edited
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.served_schemas import ServedSchemas
from fleet_operator.runtime.stored_views import status_in

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredStatus:
    """The status of a fleet at a resourceVersion. `edited`: see `is_edited`."""

    status: FleetStatus
    version: str
    edited: bool


@dataclass(frozen=True, slots=True)
class WrittenStatus:
    """A status as it was written. `version`: the new resourceVersion; empty if the object is gone."""

    status: Json
    version: str


class KubeStatuses:
    """The statuses of both resources, as this process writes them.

    Args:
        kube: The API.
        metrics: Counts writes.
        schemas: What the API server permits; None without checks.
    """

    def __init__(self, kube: Kube, metrics: Metrics, schemas: ServedSchemas | None = None) -> None:
        self._kube = kube
        self._writes = metrics.writes
        self._schemas = schemas

    async def write(
        self, plural: str, *, namespace: str, name: str, uid: str, status: Json, version: str = ""
    ) -> WrittenStatus:
        """Replace the operator's fields of a status. Does nothing if the object is gone.

        `version`: the resourceVersion that the object must have; empty for any.

        Errors: Conflict if the object was recreated or has another resourceVersion.
        """
        if self._schemas is not None:
            status = self._schemas.fitting(plural, status)
        self._writes.labels(plural).inc()
        kind = names.FLEET_KIND if plural == names.FLEET_PLURAL else names.WEIGHTS_KIND
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        if version:
            metadata["resourceVersion"] = version
        body: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": metadata,
            "status": status,
        }
        try:
            stored = await self._kube.apply(f"{_root(namespace, plural)}/{name}/status", body)
        except NotFound as error:
            logger.debug("status not written: %s", error)
            return WrittenStatus(status, "")
        except (Terminal, Retryable):
            if self._schemas is not None:
                self._schemas.look_soon()
            raise
        return WrittenStatus(status, str(stored["metadata"]["resourceVersion"]))

    async def read(self, *, namespace: str, name: str, uid: str) -> StoredStatus | None:
        """Returns the stored status of a fleet; None if the fleet is gone."""
        try:
            found = await self._kube.get(f"{_root(namespace, names.FLEET_PLURAL)}/{name}")
        except NotFound:
            return None
        metadata = found["metadata"]
        if metadata["uid"] != uid:
            return None
        return StoredStatus(
            status=status_in(found, FleetStatus),
            version=str(metadata["resourceVersion"]),
            edited=is_edited(found),
        )


def _root(namespace: str, plural: str) -> str:
    return f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{plural}"
