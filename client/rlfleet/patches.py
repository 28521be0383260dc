"""Changes to a WeightVersion as patches of the object, for the Kubernetes API."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rlfleet import sources
from rlfleet.errors import NotFound
from rlfleet.follow import patiently
from rlfleet.ports import ExistsError, Json, Kind, Objects
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.sources import Publication
from rlfleet_resources.fleet_status import PinnedWeights, pins_of
from rlfleet_resources.names import ANNOTATION_RETRY, ANNOTATION_TRACEPARENT, API_VERSION


class Patches:
    """See `Changes`."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name

    async def publish(self, asked: Publication, deadline: float | None) -> Json:
        """Patch spec and annotations, or create the object."""
        try:
            return await self._publish(asked, deadline)
        except NotFound:
            if asked.create_for is None:
                raise
        objects, made = self._objects, manifest(self._name, asked.create_for, asked)
        try:
            return await patiently(objects, lambda: objects.create(Kind.WEIGHTS, made), deadline)
        except ExistsError:
            return await self._publish(asked, deadline)

    async def rollback(
        self, version: str, path: str | None, deadline: float | None, *, digest: str | None = None
    ) -> Json:
        """Patch version, run, source and digest."""
        now = await self._get(Kind.WEIGHTS, self._name, deadline)
        seen = WeightVersion.model_validate(now)
        label = (version, seen.spec.run_id)
        return await self._go_back(now, seen, label, path, deadline, digest=digest)

    async def undo(self, deadline: float | None) -> Json:
        """Patch version, run and source."""
        now = await self._get(Kind.WEIGHTS, self._name, deadline)
        seen = WeightVersion.model_validate(now)
        return await self._go_back(now, seen, sources.before(seen), None, deadline)

    async def retry(self, deadline: float | None) -> Json:
        """Patch the annotation."""
        return await self._patch({"metadata": {"annotations": _retry()}}, deadline)

    async def suspend(self, *, suspended: bool, deadline: float | None) -> Json:
        """Patch the field."""
        return await self._patch({"spec": {"suspend": suspended}}, deadline)

    async def _publish(self, asked: Publication, deadline: float | None) -> Json:
        now = await self._get(Kind.WEIGHTS, self._name, deadline)
        seen = WeightVersion.model_validate(now)
        body = sources.publication(seen, asked)
        if sources.may_be_rewritten(seen, body["spec"]):
            body["metadata"]["annotations"] |= _retry()
        return await self._patch(body, deadline)

    async def _go_back(
        self,
        now: Json,
        seen: WeightVersion,
        label: sources.Label,
        path: str | None,
        deadline: float | None,
        *,
        digest: str | None = None,
    ) -> Json:
        """`now`, `seen`: the object. Returns: the object as it is afterwards."""
        pins: Sequence[PinnedWeights] = ()
        if path is None and label != sources.label_of(seen):
            fleet = await self._get(Kind.FLEETS, seen.spec.fleet_ref.name, deadline)
            pins = pins_of(InferenceFleet.model_validate(fleet).status, seen.spec.adapter)
        for body in sources.rollback(seen, label, path, pins, digest=digest):
            now = await self._patch(body, deadline)
        return now

    async def _get(self, kind: Kind, name: str, deadline: float | None) -> Json:
        return await patiently(self._objects, lambda: self._objects.get(kind, name), deadline)

    async def _patch(self, body: Json, deadline: float | None) -> Json:
        objects = self._objects
        return await patiently(
            objects, lambda: objects.patch(Kind.WEIGHTS, self._name, body), deadline
        )


def manifest(name: str, fleet: str, asked: Publication) -> Json:
    """A WeightVersion to create."""
    span = {ANNOTATION_TRACEPARENT: asked.traceparent} if asked.traceparent else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "WeightVersion",
        "metadata": {"name": name} | ({"annotations": span} if span else {}),
        "spec": {"fleetRef": {"name": fleet}} | sources.first(asked),
    }


def _retry() -> dict[str, str]:
    """The retry annotation with a new value."""
    return {ANNOTATION_RETRY: datetime.now(UTC).isoformat(timespec="microseconds")}
