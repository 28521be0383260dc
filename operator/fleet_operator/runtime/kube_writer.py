"""Writes a fleet's objects: pods, Services, the token, and statuses.

Every write is idempotent and guarded. A leader that ends between two writes, or has not seen its own
write yet, does no harm.
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
from fleet_operator.core.actions import (
    AdoptPod,
    BeginDrain,
    CreatePod,
    DeletePod,
    EndDrain,
    PodAction,
    Quarantine,
)
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.manifests import children, router
from fleet_operator.core.manifests.differences import holds, owns_more
from fleet_operator.core.observed import FleetObserved
from fleet_operator.errors import Conflict, NameTaken, NotFound, Retryable, Terminal, TokenUnusable
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.inference_pools import InferencePools
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.router_objects import RouterObjects
from fleet_worker.logs import fields

logger = logging.getLogger(__name__)

TOKEN_BYTES = 32

ROUTER_KINDS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Service": ("/api/v1", "services"),
}
"""API and plural of the objects of a router."""

Write = Callable[[], Awaitable[None]]
"""One write to the API server, skipped if nothing differs."""


@dataclass(frozen=True, slots=True)
class _Written:
    """A child as written or read last, with the uid of its object."""

    manifest: Json
    uid: str


class KubeWriter:
    """The Kubernetes objects of all fleets, as this process writes them."""

    def __init__(self, kube: Kube, metrics: Metrics) -> None:
        self._kube = kube
        self._metrics = metrics
        self._written: dict[str, _Written] = {}
        self.routers = RouterObjects()
        self._pools = InferencePools(kube, self._apply, self._delete)

    async def change_pod(self, namespace: str, action: PodAction) -> None:
        """Create, delete or quarantine one pod."""
        pods = f"/api/v1/namespaces/{namespace}/pods"
        match action:
            case CreatePod():
                self._count("pod")
                try:
                    await self._kube.create(pods, action.manifest)
                except Conflict:
                    # The previous pod is not gone yet, or the watch is late, or the name is taken.
                    await self._check_name(pods, action.manifest)
                    return
            case DeletePod():
                self._count("pod")
                await self._kube.delete(f"{pods}/{action.pod_name}", uid=action.pod_uid)
            case Quarantine() | AdoptPod() | BeginDrain() | EndDrain():
                if isinstance(action, AdoptPod) and not await self._lives(namespace, action.owner):
                    return
                self._count("pod")
                patch = {"metadata": {"uid": action.pod_uid} | _changes(action)}
                try:
                    await self._kube.merge(f"{pods}/{action.pod_name}", patch)
                except (NotFound, Conflict):
                    return
        done = type(action).__name__
        named = fields(
            "pod", namespace=namespace, pod=action.pod_name, operation=done, reason=action.reason
        )
        logger.info("%s %s: %s", done, action.pod_name, action.reason, extra=named)

    async def _lives(self, namespace: str, owner: Json) -> bool:
        """Whether a fleet exists and is not being deleted, read from the API server.

        The watch may be late. With `--cascade=orphan`, adopting the fleet's objects now would get
        them garbage collected. Source: adoption by
        the controllers of Kubernetes (`RecheckDeletionTimestamp`).
        """
        root = f"/apis/{names.GROUP}/{names.VERSION}/namespaces/{namespace}/{names.FLEET_PLURAL}"
        try:
            metadata = (await self._kube.get(f"{root}/{owner['name']}"))["metadata"]
        except NotFound:
            return False
        return metadata["uid"] == owner["uid"] and "deletionTimestamp" not in metadata

    def children(
        self,
        observed: FleetObserved,
        applied: Checkpoint | None,
        *,
        failed: Callable[[str], bool] = lambda _: False,
    ) -> dict[str, Write]:
        """The writes of the children that may differ from the desired state, by `Kind name`.

        `applied`: None leaves the ConfigMap as it is. `failed`: whether a child's last write failed.

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
        wanted += [(m, *ROUTER_KINDS[m["kind"]]) for m in router.router_children(observed)]
        writes: dict[str, Write] = {}
        for manifest, root, plural in wanted:
            title, path = _title(manifest), _path(root, plural, manifest)
            if not self._is_written(path, manifest) or failed(title):
                writes[title] = partial(self._apply, path, manifest)
        if (write := self._pools.write(observed)) is not None:
            writes[f"InferencePool {observed.name}"] = write
        for gone in router.unwanted(observed):
            kind = next(k for k, (_, plural) in ROUTER_KINDS.items() if f"/{plural}/" in gone.path)
            title = f"{kind} {names.router_name(observed.name)}"
            writes[title] = partial(self._delete, gone.path, gone.uid)
        return writes

    @staticmethod
    def router_parts(observed: FleetObserved) -> set[str]:
        """The parts of a router that the fleet does not have; empty if it has one."""
        if observed.spec.router is not None:
            return set()
        return {f"{kind} {names.router_name(observed.name)}" for kind in ROUTER_KINDS}

    async def _delete(self, path: str, uid: str) -> None:
        self._count("child")
        self._written.pop(path, None)
        await self._kube.delete(path, uid=uid)

    def _is_written(self, path: str, manifest: Json) -> bool:
        known = self._written.get(path)
        return known is not None and known.manifest == manifest

    async def ensure_token(self, observed: FleetObserved, *, known: str = "") -> str:
        """The token of the fleet's admin ports. Creates the Secret if it does not exist.

        `known`: the token that the workers have. It is stored again if the Secret is gone.

        Errors: Retryable while the Secret of an earlier fleet of this name waits for the garbage
        collector, since pods that mount it would wait forever. TokenUnusable if the Secret holds no
        usable token.
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
                "operator creates a new one"
            )
        token = _first_line(secret["data"][names.ADMIN_TOKEN_KEY])
        if not (token.isascii() and token.isprintable() and token):
            raise TokenUnusable(
                f"Secret {name} holds no token that fits into an HTTP header: delete the Secret, and the "
                "operator creates a new one"
            )
        return token

    async def write_status(
        self, plural: str, *, namespace: str, name: str, uid: str, status: Json, version: str = ""
    ) -> str:
        """Replace the operator's fields of a status. Does nothing if the object is gone.

        `version`: the resourceVersion that the object must have; empty for any.

        Returns: the new resourceVersion; empty if the object is gone.

        Errors: Conflict if the object was recreated or has another resourceVersion.
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
        """Whether a written child was changed or deleted since. If so, it is read again before the next write."""
        written = self._written.get(path)
        if written is None or (found is not None and holds(found, written.manifest)):
            return False
        del self._written[path]
        return True

    def forget_written(self) -> None:
        """Read every child again before its next write, since it may have changed."""
        self._written.clear()

    async def _apply(self, path: str, manifest: Json) -> None:
        """Write a child if it differs, and if its fleet is not being deleted.

        An object is read before its first write, and written by its uid from then on. An object of
        another owner is never changed.
        """
        if self._is_written(path, manifest):
            return
        known = self._written.get(path)
        uid = known.uid if known is not None else ""
        if known is None:
            found = await self._find(path)
            if found is not None:
                _check_owner(found, manifest)
                uid = found["metadata"]["uid"]
                # Remove fields that an earlier process wrote and the spec has lost since.
                stale = owns_more(found, manifest, manager=names.FIELD_MANAGER)
                if holds(found, manifest) and not stale:
                    self._written[path] = _Written(manifest, uid)
                    return
            (owner,) = manifest["metadata"]["ownerReferences"]
            if not await self._lives(manifest["metadata"]["namespace"], owner):
                return  # the garbage collector deletes it with the fleet
        self._count("child")
        body = manifest | {"metadata": manifest["metadata"] | ({"uid": uid} if uid else {})}
        try:
            stored = await self._kube.apply(path, body)
        except (Conflict, Terminal):
            # Another object may have the name now: the API server answers 422 to a wrong uid, and 409 if
            # there is no object. Read it before the next attempt.
            self._written.pop(path, None)
            raise
        self._written[path] = _Written(manifest, stored["metadata"]["uid"])

    async def _find(self, path: str) -> Json | None:
        """Read an object; None if it does not exist. A read costs less than a write that changes nothing."""
        try:
            return await self._kube.get(path)
        except NotFound:
            return None

    async def _check_name(self, pods: str, manifest: Json) -> None:
        """Errors: NameTaken if another owner's pod has the name and is not being deleted."""
        # A list, because the operator may list pods, and may not get one.
        chosen = {"fieldSelector": f"metadata.name={manifest['metadata']['name']}", "limit": "1"}
        for found in (await self._kube.get(pods, chosen))["items"]:
            if "deletionTimestamp" not in found["metadata"]:
                _check_owner(found, manifest)

    def _count(self, kind: str) -> None:
        self._metrics.writes.labels(kind).inc()


def _check_owner(found: Json, manifest: Json) -> None:
    """Check that the operator may write an object.

    It may write objects of this fleet, and those of an earlier fleet of the same name, which the garbage
    collector would delete. It may also write objects without an owner that have all labels of this fleet,
    as `kubectl delete --cascade=orphan` leaves them.

    Errors: NameTaken for all others.
    """
    metadata, wanted = found["metadata"], manifest["metadata"]
    (owner,) = wanted["ownerReferences"]
    controllers = (o for o in metadata.get("ownerReferences", ()) if o.get("controller"))
    controller = next(controllers, None)
    if controller is None:
        labels = wanted["labels"]
        fleet = {key: labels[key] for key in names.fleet_labels(owner["name"])}
        ours = (metadata.get("labels") or {}).items() >= fleet.items()
        whose = "has no owner"
    else:
        group = str(controller["apiVersion"]).partition("/")[0]
        kind = (group, controller["kind"], controller["name"])
        ours = kind == (names.GROUP, names.FLEET_KIND, owner["name"])
        whose = f"belongs to {controller['kind']} {controller['name']}"
    if not ours:
        raise NameTaken(
            f"{_title(manifest)} exists already and {whose}. The operator leaves it as it is. Delete "
            "it, or create the fleet under another name"
        )


def _title(manifest: Json) -> str:
    return f"{manifest['kind']} {manifest['metadata']['name']}"


def _path(root: str, plural: str, manifest: Json) -> str:
    metadata = manifest["metadata"]
    return f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"


def _first_line(encoded: str) -> str:
    """The token to send, from the first line that is not empty. Workers accept the token of every line,
    so that tokens can be rotated without a gap.
    """
    lines = base64.b64decode(encoded).decode(errors="replace").splitlines()
    return next((line.strip() for line in lines if line.strip()), "")


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
