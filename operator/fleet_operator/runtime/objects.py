"""Writes a fleet's objects: pods, Services, the token, and statuses.

Every write is idempotent and guarded, so that a leader that died between two of them, or that did
not see its own yet, does no harm.
"""

from __future__ import annotations

import base64
import json
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fleet_operator.api import names
from fleet_operator.core import children
from fleet_operator.core.actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
)
from fleet_operator.core.differences import holds, owns_more
from fleet_operator.core.observed import FleetObserved, Target
from fleet_operator.errors import Conflict, NameTaken, NotFound, Retryable, Terminal, TokenUnusable
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.metrics import Metrics

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32

Write = Callable[[], Awaitable[None]]
"""One write to the API server, or none if nothing differs."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A child as it was written or found last. `uid`: of the object that holds it."""

    manifest: Json
    uid: str


class Objects:
    """The Kubernetes objects of all fleets, as this process writes them."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._written: dict[str, _Written] = {}

    async def change_pod(self, namespace: str, action: PodAction) -> None:
        """Create, delete or quarantine one pod."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        match action:
            case CreatePod():
                self._count("pod")
                try:
                    await self._kube.create(pods, action.manifest)
                except Conflict:
                    # Its predecessor is not gone yet, or our view is late, or the name is taken.
                    await self._check_name(pods, action.manifest)
                    return
            case DeletePod():
                self._count("pod")
                await self._kube.delete(f"{pods}/{action.name}", uid=action.uid)
            case Quarantine() | AdoptPod() | BeginDrain() | EndDrain():
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

    def children(self, observed: FleetObserved, applied: Target | None) -> dict[str, Write]:
        """What makes each child be as it should, writing only differences, by `Kind name`.

        `applied`: None leaves the ConfigMap as it is.

        Errors of each: NameTaken if an object of that name belongs to something else.
        """
        wanted = [
            (children.service(observed), "/api/v1", "services"),
            (children.headless_service(observed), "/api/v1", "services"),
            (children.disruption_budget(observed), "/apis/policy/v1", "poddisruptionbudgets"),
        ]
        if applied is not None:
            config_map = children.applied_config_map(observed, applied)
            wanted.append((config_map, "/api/v1", "configmaps"))
        return {
            _title(manifest): partial(self._apply, _path(root, plural, manifest), manifest)
            for manifest, root, plural in wanted
        }

    async def ensure_token(self, observed: FleetObserved, *, known: str = "") -> str:
        """The bearer token of the fleet's admin ports, made if there is none.

        `known`: the token that the workers have, written down again if the Secret is gone.

        Errors: Retryable while the Secret of an earlier fleet of this name waits for the garbage
        collector; pods that mounted it would wait for it for ever. TokenUnusable if there is a
        Secret and no token in it.
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
            raise TokenUnusable(
                f"Secret {name} has no key {names.ADMIN_TOKEN_KEY!r}: delete the Secret, and the "
                "operator makes one"
            )
        token = _first_line(secret["data"][names.ADMIN_TOKEN_KEY])
        if not (token.isascii() and token.isprintable() and token):
            raise TokenUnusable(
                f"Secret {name} holds no token that a header can carry: delete the Secret, and the "
                "operator makes one"
            )
        return token

    async def write_status(
        self, plural: str, *, namespace: str, name: str, uid: str, status: Json, version: str = ""
    ) -> str:
        """Replace our part of a status. An object that is gone is left alone.

        `version`: the resourceVersion that the object must have; empty for any.

        Returns: the resourceVersion that it has now; empty if it is gone.

        Errors: Conflict if it was recreated, or has another resourceVersion.
        """
        self._count(plural)
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

    def differs(self, path: str, found: Json | None) -> bool:
        """Whether somebody has changed or deleted what we wrote; it is looked at again then."""
        written = self._written.get(path)
        if written is None or (found is not None and holds(found, written.manifest)):
            return False
        del self._written[path]
        return True

    def forget_written(self) -> None:
        """Look at every child again when its turn comes: somebody may have changed it."""
        self._written.clear()

    async def _apply(self, path: str, manifest: Json) -> None:
        """Write a child if it differs, and its fleet stays.

        An object is looked at before it is written for the first time, and from then on written by
        its uid: one that belongs to something else is never changed.
        """
        known = self._written.get(path)
        if known is not None and known.manifest == manifest:
            return
        uid = known.uid if known is not None else ""
        if known is None:
            found = await self._find(path)
            if found is not None:
                _check_owner(found, manifest)
                uid = found["metadata"]["uid"]
                # A field that the spec has lost since an earlier process wrote it must go.
                stale = owns_more(found, manifest, manager=names.FIELD_MANAGER)
                if holds(found, manifest) and not stale:
                    self._written[path] = _Written(manifest, uid)
                    return
            (owner,) = manifest["metadata"]["ownerReferences"]
            if not await self._lives(manifest["metadata"]["namespace"], owner):
                return  # it goes with the fleet
        self._count("child")
        body = manifest | {"metadata": manifest["metadata"] | ({"uid": uid} if uid else {})}
        try:
            stored = await self._kube.apply(path, body)
        except (Conflict, Terminal):
            # Perhaps another object has its name now: the API server answers 422 to a uid that is
            # not the object's, and 409 if there is no object. It is looked at before the next try.
            self._written.pop(path, None)
            raise
        self._written[path] = _Written(manifest, stored["metadata"]["uid"])

    async def _find(self, path: str) -> Json | None:
        """Looking costs a fleet at rest less than writing what is there already."""
        try:
            return await self._kube.get(path)
        except NotFound:
            return None

    async def _check_name(self, pods: str, manifest: Json) -> None:
        """Errors: NameTaken if a pod that is not this fleet's has the name, and stays."""
        # By a list: the operator needs that right anyway, and has none to get a pod.
        chosen = {"fieldSelector": f"metadata.name={manifest['metadata']['name']}", "limit": "1"}
        for found in (await self._kube.get(pods, chosen))["items"]:
            if "deletionTimestamp" not in found["metadata"]:
                _check_owner(found, manifest)

    def _count(self, kind: str) -> None:
        self._metrics.writes.labels(kind).inc()


def _check_owner(found: Json, manifest: Json) -> None:
    """Errors: NameTaken unless the object is this fleet's, an earlier fleet's of the same name (whose
    objects the garbage collector would delete), or nothing's with all labels of this fleet's
    objects, as `kubectl delete --cascade=orphan` leaves it.
    """
    metadata, wanted = found["metadata"], manifest["metadata"]
    (owner,) = wanted["ownerReferences"]
    controllers = (o for o in metadata.get("ownerReferences", ()) if o.get("controller"))
    controller = next(controllers, None)
    if controller is None:
        fleet = names.fleet_labels(owner["name"])
        ours = (metadata.get("labels") or {}).items() >= fleet.items()
        whose = "has no owner"
    else:
        group = str(controller["apiVersion"]).partition("/")[0]
        kind = (group, controller["kind"], controller["name"])
        ours = kind == (names.GROUP, names.FLEET_KIND, owner["name"])
        whose = f"belongs to {controller['kind']} {controller['name']}"
    if not ours:
        raise NameTaken(
            f"{_title(manifest)} exists already and {whose}: it is left as it is. Delete it, or make "
            "the fleet under another name"
        )


def _title(manifest: Json) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _path(root: str, plural: str, manifest: Json) -> str:
    metadata = manifest["metadata"]
    return f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def _first_line(encoded: str) -> str:
    """The token to send. Workers take every line, so that tokens can be exchanged without a gap,
    and people end theirs with a line end.
    """
    lines = base64.b64decode(encoded).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


def _changes(action: Quarantine | AdoptPod | BeginDrain | EndDrain) -> dict[str, Any]:
    """What changes in a pod's metadata; None takes a key away."""
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
