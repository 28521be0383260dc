"""Writes a fleet's children: Services, disruption budget, ConfigMap of the applied weights, and router.

Every write is idempotent and guarded. A leader that ends between two writes, or has not seen its own
write yet, does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.manifests import children as manifests
from fleet_operator.core.manifests import router
from fleet_operator.core.manifests.differences import contains, owns_more
from fleet_operator.core.observed import FleetObserved
from fleet_operator.errors import Conflict, NotFound, Terminal, WriteUndone
from fleet_operator.ports import Json, Kube
from fleet_operator.runtime.background_writes import Write
from fleet_operator.runtime.inference_pools import InferencePools
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.ownership import check_owner, fleet_lives, title_of
from fleet_operator.runtime.repeated_writes import RepeatedWrites
from rlfleet_resources import names

ROUTER_KINDS = {
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Service": ("/api/v1", "services"),
}
"""API and plural of the objects of a router."""
_NEVER = "1"
"""A resourceVersion that no object has. An apply that names it creates a missing object, and is refused with
409 if there is one. A POST would not do: the API server keeps its fields apart from those of an apply, and a
later apply could not remove them. Source: Kubernetes, `Store.Update` of the generic registry.
"""


@dataclass(frozen=True, slots=True)
class _Written:
    """A child as written or read last, with the uid of its object."""

    manifest: Json
    uid: str


class KubeChildren:
    """The children of one fleet, as this process writes them. `clock`: as of `RepeatedWrites`."""

    def __init__(
        self, kube: Kube, metrics: Metrics, *, clock: Callable[[], float] | None = None
    ) -> None:
        self._kube = kube
        self._count = metrics.writes.labels("child").inc
        self._written: dict[str, _Written] = {}
        self._repeated: RepeatedWrites[str] = RepeatedWrites(clock)
        self._attempted: dict[str, Json] = {}
        """The manifest of the last write, by path."""
        self._pools = InferencePools(kube, self._apply, self._delete)

    def due(
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
            (manifests.service(observed), "/api/v1", "services"),
            (manifests.headless_service(observed), "/api/v1", "services"),
            (manifests.disruption_budget(observed), "/apis/policy/v1", "poddisruptionbudgets"),
        ]
        if applied is not None:
            config_map = manifests.applied_config_map(observed, applied)
            wanted.append((config_map, "/api/v1", "configmaps"))
        wanted += [(m, *ROUTER_KINDS[m["kind"]]) for m in router.router_children(observed)]
        writes: dict[str, Write] = {}
        for manifest, root, plural in wanted:
            title, path = title_of(manifest), _path(root, plural, manifest)
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
        self._count()
        self._written.pop(path, None)
        await self._kube.delete(path, uid=uid)

    def _is_written(self, path: str, manifest: Json) -> bool:
        known = self._written.get(path)
        return known is not None and known.manifest == manifest

    def differs(self, path: str, found: Json | None) -> bool:
        """Whether a written child was changed or deleted since. It is then read before the next write."""
        written = self._written.get(path)
        if written is None or (found is not None and contains(found, written.manifest)):
            return False
        del self._written[path]
        return True

    def forget_written(self) -> None:
        """Read every child again before its next write, since it may have changed."""
        self._written.clear()
        self._attempted.clear()

    async def _apply(self, path: str, manifest: Json) -> None:
        """Write a child if it differs, and if its fleet is not being deleted.

        An object is read before its first write, and written by its uid from then on. A missing one is
        created only. So an object of another owner is never changed, whenever that was created.
        """
        self._check_repeated(path, manifest)
        if self._is_written(path, manifest):
            return
        known = self._written.get(path)
        uid = known.uid if known is not None else ""
        if known is None:
            found = await self._find(path)
            if found is not None:
                check_owner(found, manifest)
                uid = found["metadata"]["uid"]
                # Remove fields that an earlier process wrote and the spec has lost since.
                stale = owns_more(found, manifest, manager=names.FIELD_MANAGER)
                if contains(found, manifest) and not stale:
                    self._written[path] = _Written(manifest, uid)
                    self._check_lasting(path)  # the event of an earlier change may have come late
                    return
            (owner,) = manifest["metadata"]["ownerReferences"]
            if not await fleet_lives(self._kube, manifest["metadata"]["namespace"], owner):
                return  # the garbage collector deletes it with the fleet
        self._count()
        guard = {"uid": uid} if uid else {"resourceVersion": _NEVER}
        body = manifest | {"metadata": manifest["metadata"] | guard}
        try:
            stored = await self._kube.apply(path, body)
        except (Conflict, Terminal):
            # Another object may have the name now. The API server answers 422 to a wrong uid. It answers 409
            # if the object is gone, or exists already. Read it before the next attempt.
            self._written.pop(path, None)
            raise
        self._attempted[path] = manifest
        is_stored = contains(stored, manifest)
        lost = "" if is_stored else "it is not stored as it was written"
        self._repeated.note(path, title_of(manifest), lost=lost)
        if is_stored:
            self._written[path] = _Written(manifest, stored["metadata"]["uid"])
        self._check_lasting(path)

    def _check_lasting(self, path: str) -> None:
        """Check that a child, which is as it should be now, was not changed back repeatedly. Errors: WriteUndone."""
        if isinstance(error := self._repeated.error_of(path), WriteUndone):
            raise error

    def _check_repeated(self, path: str, manifest: Json) -> None:
        """Check that a child may be written now. One whose manifest has changed may.

        Errors: WriteUndone; Retryable.
        """
        if self._attempted.get(path, manifest) != manifest:
            self._repeated.forget(path)
        waits = self._is_written(path, manifest) or self._repeated.wait_seconds(path)
        if waits and (error := self._repeated.error_of(path)) is not None:
            raise error

    async def _find(self, path: str) -> Json | None:
        """Read an object; None if it does not exist. A read costs less than a write that changes nothing."""
        try:
            return await self._kube.get(path)
        except NotFound:
            return None


def _path(root: str, plural: str, manifest: Json) -> str:
    metadata = manifest["metadata"]
    return f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
