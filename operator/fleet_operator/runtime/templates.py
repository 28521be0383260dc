"""Records the template of a fleet's pods in a ControllerRevision, one for each revision of the spec.

A ConfigMap would not be safe: with the right to write one, a user could make the operator create any pod. The
Kubernetes role `edit` cannot write ControllerRevisions, and the API server keeps their data immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fleet_operator.command_line import release
from fleet_operator.core.manifests import overlay, pods, revisions
from fleet_operator.core.manifests.templates import RecordedTemplate
from fleet_operator.core.observed import FleetObserved
from fleet_operator.errors import Conflict, NameTaken, NotFound, Retryable, Terminal
from fleet_operator.ports import Json, Kube
from rlfleet_resources import names

TEMPLATE = "the pods' template"
"""The part of a fleet that failures are noted under."""
API_VERSION = "apps/v1"
_PAGE_SIZE = "500"
"""Records for each read: one for each revision of the pods, and one more."""


class Templates:
    """The recorded templates of one fleet, read once by each process. `on_write` counts writes."""

    def __init__(
        self, kube: Kube, default_image: str, on_write: Callable[[], None] = lambda: None
    ) -> None:
        self._kube = kube
        self._on_write = on_write
        self._default_image = default_image
        self._known: RecordedTemplate | None = None
        self.release = release()

    def known(self, observed: FleetObserved) -> RecordedTemplate | None:
        """The template for the fleet's spec; None before it was read or written."""
        recorded = self._known
        if recorded is None or recorded.revision != revisions.revision_of(observed):
            return None
        return recorded

    async def ensure(self, observed: FleetObserved, in_use: Collection[str]) -> None:
        """Read the template for the fleet's spec, or record today's.

        `in_use`: revisions of pods that stay. Other records are deleted when a new one is written. A spec
        that returns after another one is recorded again if no pod has it any more. So a change of
        `spec.update.restartedAt` always gets pods of the current operator.

        Errors: Retryable while the record of an earlier fleet of this name waits for the garbage
        collector. NameTaken. Terminal if a record holds no template.
        """
        if overlay.problem_of(observed.spec.pod_overlay.read()):
            return
        revision = revisions.revision_of(observed)
        path = f"{_collection(observed)}/{observed.name}-{revision}"
        try:
            found = await self._kube.get(path)
            recorded = _read(found, observed, revision)
            if revision not in in_use and await self._is_superseded(found, observed):
                self._on_write()
                await self._kube.delete(path, uid=found["metadata"]["uid"])
                recorded = await self._record(observed, revision, in_use)
        except NotFound:
            recorded = await self._record(observed, revision, in_use)
        self._known = recorded

    async def _record(
        self, observed: FleetObserved, revision: str, in_use: Collection[str]
    ) -> RecordedTemplate:
        """Write the current template, unless another process has written one."""
        await self._delete_unused(observed, {*in_use, revision})
        self._on_write()
        collection, manifest = _collection(observed), self._manifest(observed, revision)
        try:
            found = await self._kube.create(collection, manifest)
        except Conflict:
            found = await self._kube.get(f"{collection}/{manifest['metadata']['name']}")
        return _read(found, observed, revision)

    async def _is_superseded(self, found: Json, observed: FleetObserved) -> bool:
        """Whether the template of another spec of this fleet was recorded later.

        Source: apps/v1 ControllerRevision: `revision` orders the records of one owner; here it is the
        generation of the fleet.
        """
        others = await self._records(observed)
        return any(o["revision"] > found["revision"] for o in others)

    def _manifest(self, observed: FleetObserved, revision: str) -> Json:
        return {
            "apiVersion": API_VERSION,
            "kind": "ControllerRevision",
            "metadata": {
                "name": f"{observed.name}-{revision}",
                "namespace": observed.namespace,
                "labels": names.fleet_labels(observed.name) | {names.LABEL_REVISION: revision},
                "ownerReferences": [pods.owner_reference(observed)],
            },
            "revision": observed.generation,
            "data": {
                "release": self.release,
                "template": pods.template_of(observed, self._default_image),
                # The successors of a template change are gated by the same queue: which pods it held
                # back before cannot be seen later.
                "heldBack": observed.workers.count(
                    lambda f: f.pod.gated and f.pod.revision != revision and not f.pod.deleting
                ),
            },
        }

    async def _delete_unused(self, observed: FleetObserved, kept: Collection[str]) -> None:
        for item in await self._records(observed):
            metadata = item["metadata"]
            if metadata.get("labels", {}).get(names.LABEL_REVISION) not in kept:
                path = f"{_collection(observed)}/{metadata['name']}"
                self._on_write()
                await self._kube.delete(path, uid=metadata["uid"])

    async def _records(self, observed: FleetObserved) -> list[Json]:
        selector = {"labelSelector": names.fleet_selector(observed.name), "limit": _PAGE_SIZE}
        found = (await self._kube.get(_collection(observed), selector))["items"]
        return [item for item in found if _owner(item["metadata"]) == observed.uid]


def _collection(observed: FleetObserved) -> str:
    return f"/apis/{API_VERSION}/namespaces/{observed.namespace}/controllerrevisions"


def _owner(metadata: Json) -> str:
    owners = metadata.get("ownerReferences", ())
    return next((str(o["uid"]) for o in owners if o.get("controller")), "")


def _read(found: Json, observed: FleetObserved, revision: str) -> RecordedTemplate:
    metadata = found["metadata"]
    title = f"ControllerRevision {metadata['name']}"
    owners: list[dict[str, Any]] = metadata.get("ownerReferences", [])
    if _owner(metadata) != observed.uid:
        if any(o["kind"] == names.FLEET_KIND for o in owners):
            raise Retryable(f"{title} belongs to an earlier fleet of this name")
        raise NameTaken(
            f"{title} exists already and does not belong to this fleet. The operator leaves it as it "
            "is. Delete it, or create the fleet under another name"
        )
    try:
        template, by = found["data"]["template"], str(found["data"]["release"])
        workers = [c for c in template["spec"]["containers"] if c["name"] == names.WORKER_CONTAINER]
    except (KeyError, TypeError):
        workers = []
    if not workers or not isinstance(template.get("metadata"), dict):
        raise Terminal(f"{title} holds no template: delete it, and the operator creates a new one")
    held_back = found["data"].get("heldBack")
    return RecordedTemplate(
        revision=revision,
        pod=template,
        release=by,
        held_back=held_back if type(held_back) is int and held_back > 0 else 0,
    )
