"""Changes one pod in the API server: creates, deletes, quarantines, adopts or drains it.

Every change is guarded by the uid of the pod, and may be repeated.
"""

from __future__ import annotations

import json
import logging
from typing import Any, NamedTuple

from fleet_operator.core.manifests.differences import contains
from fleet_operator.core.pod_actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
)
from fleet_operator.counts import agree
from fleet_operator.errors import Conflict, NameTaken, NotFound
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.ownership import check_owner, fleet_lives, title_of
from fleet_worker.logs import fields
from rlfleet_resources import names

logger = logging.getLogger(__name__)

_WATCHED_BY = (names.LABEL_MANAGED_BY, names.LABEL_FLEET, names.LABEL_ORDINAL)


class Changed(NamedTuple):
    """A change that the API server has accepted.

    Fields:
        version: the resourceVersion of the changed pod; empty if it is unknown.
        lost: what it has not stored, in words; empty if it has stored all.
    """

    version: str = ""
    lost: str = ""


class KubePods:
    """The pods of all fleets, as this process writes them."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._count = metrics.writes.labels("pod").inc

    async def may_create(self, action: CreatePod) -> bool:
        """Whether the fleet of a pod exists and is not being deleted. One question is enough for many pods:
        the garbage collector deletes those that come later.

        Errors: those of the API server.
        """
        metadata = action.manifest["metadata"]
        (owner,) = metadata["ownerReferences"]
        return await fleet_lives(self._kube, metadata["namespace"], owner)

    async def change(self, namespace: str, action: PodAction) -> Changed:
        """Carry an action out.

        Errors: those of the API server, and NameTaken if another owner's pod has the name, or a pod that
        the operator does not watch.
        """
        changed, pods = Changed(), f"/api/v1/namespaces/{namespace}/pods"
        match action:
            case CreatePod():
                self._count()
                try:
                    await self._kube.create(pods, action.manifest)
                except Conflict:
                    # The previous pod is not gone yet, or the watch is late, or the name is taken.
                    await self._check_name(pods, action.manifest)
                    return Changed()
            case DeletePod():
                self._count()
                await self._kube.delete(f"{pods}/{action.pod_name}", uid=action.pod_uid)
            case Quarantine() | AdoptPod() | BeginDrain() | EndDrain():
                if isinstance(action, AdoptPod) and not await fleet_lives(
                    self._kube, namespace, action.owner
                ):
                    return Changed()
                self._count()
                changes = _changes(action)
                patch = {"metadata": {"uid": action.pod_uid} | changes}
                try:
                    stored = await self._kube.merge(f"{pods}/{action.pod_name}", patch)
                except (NotFound, Conflict):
                    return Changed()
                lost = _lost(stored["metadata"], changes)
                changed = Changed(stored["metadata"].get("resourceVersion", ""), lost)
        done = type(action).__name__
        named = fields(
            "pod", namespace=namespace, pod=action.pod_name, operation=done, reason=action.reason
        )
        logger.info("%s %s: %s", done, action.pod_name, action.reason, extra=named)
        return changed

    async def _check_name(self, pods: str, manifest: Json) -> None:
        """Errors: NameTaken if another owner's pod, or one without its labels, has the name and is not
        being deleted.
        """
        # A list, because the operator may list pods, and may not get one.
        chosen = {"fieldSelector": f"metadata.name={manifest['metadata']['name']}", "limit": "1"}
        for found in (await self._kube.get(pods, chosen))["items"]:
            if "deletionTimestamp" not in found["metadata"]:
                check_owner(found, manifest)
                _check_labels(found, manifest)


def _lost(stored: Json, changes: Json) -> str:
    """The part that the API server has not stored of the changes of a pod's metadata; empty if it has all."""
    lost = [
        f"{key} {name}".strip()
        for key, wanted in changes.items()
        for name, value in (wanted.items() if isinstance(wanted, dict) else [("", wanted)])
        if not _has(stored.get(key) or {}, name, value)
    ]
    return f"{', '.join(lost)} did not change" if lost else ""


def _has(stored: Any, name: str, value: Any) -> bool:
    """Whether a part of the stored metadata has a value under a name; None: it has none."""
    if not name:
        return contains(stored, value)
    found = stored.get(name)
    return bool(found == value)


def _check_labels(found: Json, manifest: Json) -> None:
    """Check that a pod of the fleet has the labels by which the operator watches it.

    Errors: NameTaken if it has lost some.
    """
    labels, wanted = found["metadata"].get("labels", {}), manifest["metadata"]["labels"]
    lost = [key for key in _WATCHED_BY if labels.get(key) != wanted[key]]
    if lost:
        raise NameTaken(
            f"{title_of(manifest)} no longer has the {agree(len(lost), 'label', 'labels')} "
            f"{', '.join(f'{key}={wanted[key]}' for key in lost)}. The operator does not watch it "
            "any more, and cannot create another worker of this name. Add what is missing, or delete the pod",
            may_pass=True,
        )


def _changes(action: Quarantine | AdoptPod | BeginDrain | EndDrain) -> dict[str, Any]:
    """The metadata patch of an action; None removes a key."""
    match action:
        case AdoptPod():
            return {"ownerReferences": [action.owner]}
        case BeginDrain():
            written = json.dumps({"since": action.since.isoformat(), "reason": action.reason})
            return {
                "labels": {names.LABEL_TRAFFIC: names.TRAFFIC_DRAINING},
                "annotations": {names.ANNOTATION_DRAIN: written},
            }
        case EndDrain():
            return {
                "labels": {names.LABEL_TRAFFIC: names.TRAFFIC_ALLOWED},
                "annotations": {names.ANNOTATION_DRAIN: None},
            }
    return {
        "labels": {names.LABEL_TRAFFIC: names.TRAFFIC_FENCED},
        "annotations": {names.ANNOTATION_QUARANTINE: json.dumps({"reason": action.reason})},
    }
