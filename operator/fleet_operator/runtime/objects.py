"""Writes a fleet's objects: pods, Services, the token, and statuses.

Every write is idempotent and guarded, so that a leader that died between two of them, or that did
not see its own yet, does no harm.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
from typing import Any

from fleet_operator.api import names
from fleet_operator.core import children
from fleet_operator.core.actions import AdoptPod, CreatePod, DeletePod, PodAction, Quarantine
from fleet_operator.core.differences import holds
from fleet_operator.core.observed import FleetObserved, Target
from fleet_operator.errors import Conflict, NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.metrics import Metrics

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32


class Objects:
    """The Kubernetes objects of all fleets, as this process writes them."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._written: dict[str, Json] = {}

    async def change_pod(self, namespace: str, action: PodAction) -> None:
        """Create, delete or quarantine one pod."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        match action:
            case CreatePod():
                self._count("pod")
                try:
                    await self._kube.create(pods, action.manifest)
                except Conflict:
                    # Its predecessor is not gone yet, or our view is late: look again.
                    return
            case DeletePod():
                self._count("pod")
                await self._kube.delete(f"{pods}/{action.name}", uid=action.uid)
            case Quarantine() | AdoptPod():
                if isinstance(action, AdoptPod) and not await self._lives(namespace, action.owner):
                    return
                self._count("pod")
                patch = {"metadata": {"uid": action.uid} | _changes(action)}
                try:
                    await self._kube.merge(f"{pods}/{action.name}", patch)
                except (NotFound, Conflict):
                    return
        logger.info("%s %s: %s", type(action).__name__, action.name, action.reason)

    async def _lives(self, namespace: str, owner: Json) -> bool:
        """Whether a fleet is there and stays, asked of the API server itself.

        Our watch may not have told yet that it goes. What belongs to it is left to nobody just
        then (`--cascade=orphan`): taken back, it would be collected with it. Source: adoption by
        the controllers of Kubernetes (`RecheckDeletionTimestamp`).
        """
        root = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.FLEET_PLURAL}"
        try:
            metadata = (await self._kube.get(f"{root}/{owner['name']}"))["metadata"]
        except NotFound:
            return False
        return metadata["uid"] == owner["uid"] and "deletionTimestamp" not in metadata

    async def ensure_children(self, observed: FleetObserved, applied: Target) -> None:
        """Make the Services and the ConfigMap be as they should, writing only differences."""
        for manifest, root, plural in (
            (children.service(observed), "/api/v1", "services"),
            (children.headless_service(observed), "/api/v1", "services"),
            (children.applied_config_map(observed, applied), "/api/v1", "configmaps"),
            (children.disruption_budget(observed), "/apis/policy/v1", "poddisruptionbudgets"),
        ):
            metadata = manifest["metadata"]
            path = f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
            if not await self._apply(path, manifest):
                return  # the others go with the fleet, too

    async def ensure_token(self, observed: FleetObserved, *, known: str = "") -> str:
        """The bearer token of the fleet's admin ports, made if there is none.

        `known`: the token that the workers have, written down again if the Secret is gone.

        Errors: Retryable while the Secret of an earlier fleet of this name waits for the garbage
        collector; pods that mounted it would wait for it for ever. Terminal if there is a Secret
        and no token in it.
        """
        namespace, name = observed.namespace, names.admin_token_secret_name(observed.name)
        collection = f"/api/v1/namespaces/{namespace}/secrets"
        try:
            secret = await self._kube.get(f"{collection}/{name}")
        except NotFound:
            token = known or secrets.token_urlsafe(TOKEN_BYTES)
            self._count("secret")
            secret = await self._kube.create(
                collection, children.admin_token_secret(observed, token)
            )
        owners = secret["metadata"].get("ownerReferences", ())
        if any(o["kind"] == names.FLEET_KIND and o["uid"] != observed.uid for o in owners):
            raise Retryable(f"Secret {name} belongs to an earlier fleet of this name")
        if names.ADMIN_TOKEN_KEY not in secret.get("data", {}):
            raise Terminal(f"Secret {name} has no key {names.ADMIN_TOKEN_KEY!r}; delete it")
        token = _first_line(secret["data"][names.ADMIN_TOKEN_KEY])
        if not (token.isascii() and token.isprintable() and token):
            raise Terminal(f"Secret {name} holds no token that a header can carry; delete it")
        return token

    async def write_status(
        self, plural: str, *, namespace: str, name: str, uid: str, status: Json
    ) -> None:
        """Replace our part of a status. An object that is gone is left alone.

        Errors: Conflict if it was made anew, or was written to all the time.
        """
        self._count(plural)
        kind = names.FLEET_KIND if plural == names.FLEET_PLURAL else names.WEIGHTS_KIND
        body: dict[str, Any] = {
            "apiVersion": names.API_VERSION,
            "kind": kind,
            "metadata": {"name": name, "namespace": namespace, "uid": uid},
            "status": status,
        }
        root = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{plural}"
        try:
            await self._kube.apply(f"{root}/{name}/status", body)
        except NotFound as error:
            logger.debug("status not written: %s", error)

    def differs(self, path: str, found: Json | None) -> bool:
        """Whether somebody has changed or deleted what we wrote; it is looked at again then."""
        written = self._written.get(path)
        if written is None or (found is not None and holds(found, written)):
            return False
        del self._written[path]
        return True

    def forget_written(self) -> None:
        """Look at every child again when its turn comes: somebody may have changed it."""
        self._written.clear()

    async def _apply(self, path: str, manifest: Json) -> bool:
        """Write a child if it differs. Returns: whether its fleet stays."""
        if self._written.get(path) == manifest:
            return True
        if path not in self._written:
            if await self._is_as_it_should_be(path, manifest):
                self._written[path] = manifest
                return True
            metadata = manifest["metadata"]
            (owner,) = metadata["ownerReferences"]
            if not await self._lives(metadata["namespace"], owner):
                return False
        self._count("child")
        await self._kube.apply(path, manifest)
        self._written[path] = manifest
        return True

    async def _is_as_it_should_be(self, path: str, manifest: Json) -> bool:
        """Looking costs a fleet at rest less than writing what is there already."""
        try:
            return holds(await self._kube.get(path), manifest)
        except NotFound:
            return False

    def _count(self, kind: str) -> None:
        self._metrics.writes.labels(kind).inc()


def _first_line(encoded: str) -> str:
    """The token to send. Workers take every line, so that tokens can be exchanged without a gap,
    and people end theirs with a line end.
    """
    lines = base64.b64decode(encoded).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def _changes(action: Quarantine | AdoptPod) -> dict[str, Any]:
    """What changes in a pod's metadata."""
    if isinstance(action, AdoptPod):
        return {"ownerReferences": [action.owner]}
    return {
        "labels": {names.LABEL_TRAFFIC: names.TRAFFIC_FENCED},
        "annotations": {names.ANNOTATION_QUARANTINE: json.dumps({"reason": action.reason})},
    }
