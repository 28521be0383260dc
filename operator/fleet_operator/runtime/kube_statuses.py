"""Replaces the operator's fields of one status in the API server."""

from __future__ import annotations

import logging
from typing import Any

from fleet_operator.api import names
from fleet_operator.errors import NotFound
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.metrics import Metrics

logger = logging.getLogger(__name__)


class KubeStatuses:
    """The statuses of both resources, as this process writes them."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._writes = metrics.writes

    async def write(
        self, plural: str, *, namespace: str, name: str, uid: str, status: Json, version: str = ""
    ) -> str:
        """Replace the operator's fields of a status. Does nothing if the object is gone.

        `version`: the resourceVersion that the object must have; empty for any.

        Returns: the new resourceVersion; empty if the object is gone.

        Errors: Conflict if the object was recreated or has another resourceVersion.
        """
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
        root = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{plural}"
        try:
            stored = await self._kube.apply(f"{root}/{name}/status", body)
        except NotFound as error:
            logger.debug("status not written: %s", error)
            return ""
        return str(stored["metadata"]["resourceVersion"])
