"""Changes to a WeightVersion as patches of the object, for the Kubernetes API."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rlfleet import rollout as core
from rlfleet.errors import NotFound
from rlfleet.follow import patiently
from rlfleet.pins import pins_of
from rlfleet.ports import ExistsError, Json, Kind, Objects
from rlfleet.resources import (
    API_VERSION,
    RETRY,
    TRACEPARENT,
    InferenceFleet,
    WeightSource,
    WeightVersion,
)


class Patches:
    """See `Changes`."""

    def __init__(self, objects: Objects, name: str) -> None:
        self._objects = objects
        self._name = name

    async def publish(
        self, spec: Json, create_for: str | None, traceparent: str | None, deadline: float | None
    ) -> Json:
        """Patch spec and annotation, or create the object."""
        body = _of_span(traceparent) | {"spec": spec}
        try:
            return await self._patch(body, deadline)
        except NotFound:
            if create_for is None:
                raise
        objects, made = self._objects, manifest(self._name, create_for, spec, traceparent)
        try:
            return await patiently(objects, lambda: objects.create(Kind.WEIGHTS, made), deadline)
        except ExistsError:
            return await self._patch(body, deadline)

    async def rollback(self, version: str, path: str | None, deadline: float | None) -> Json:
        """Patch version, run and source. The source is what the fleet has recorded for the version."""
        now = await self._get(Kind.WEIGHTS, self._name, deadline)
        seen = WeightVersion.model_validate(now)
        source = WeightSource(path=path) if path else await self._source_of(version, seen, deadline)
        for spec in core.rollback_patches(seen, version, source):
            more = _of_span(None) if "version" in spec else {}
            now = await self._patch(more | {"spec": spec}, deadline)
        return now

    async def retry(self, deadline: float | None) -> Json:
        """Patch the annotation."""
        mark = datetime.now(UTC).isoformat(timespec="microseconds")
        return await self._patch({"metadata": {"annotations": {RETRY: mark}}}, deadline)

    async def suspend(self, *, suspended: bool, deadline: float | None) -> Json:
        """Patch the field."""
        return await self._patch({"spec": {"suspend": suspended}}, deadline)

    async def _get(self, kind: Kind, name: str, deadline: float | None) -> Json:
        return await patiently(self._objects, lambda: self._objects.get(kind, name), deadline)

    async def _patch(self, body: Json, deadline: float | None) -> Json:
        objects = self._objects
        return await patiently(
            objects, lambda: objects.patch(Kind.WEIGHTS, self._name, body), deadline
        )

    async def _source_of(
        self, version: str, seen: WeightVersion, deadline: float | None
    ) -> WeightSource | None:
        """The recorded source of an earlier version; None if the spec's source is a template."""
        if seen.spec.source.is_template or seen.spec.version == version:
            return None
        found = await self._get(Kind.FLEETS, seen.spec.fleet_ref.name, deadline)
        status = InferenceFleet.model_validate(found).status
        for pin in pins_of(status, seen.spec.adapter):
            if (pin.version, pin.run_id) == (version, seen.spec.run_id):
                return pin.source
        raise NotFound(
            f"the fleet has no record of where version {version} is, and the source of "
            f"{self._name!r} has no {{version}} in it; give its directory with path= or --path"
        )


def _of_span(traceparent: str | None) -> Json:
    """The part of a merge patch that writes the annotation, or removes the one of an older version."""
    return {"metadata": {"annotations": {TRACEPARENT: traceparent}}}


def manifest(name: str, fleet: str, spec: Json, traceparent: str | None = None) -> Json:
    """A WeightVersion to create. `spec`: a merge patch without `fleetRef`; its nulls are left out."""
    annotations = {"annotations": {TRACEPARENT: traceparent}} if traceparent else {}
    return {
        "apiVersion": API_VERSION,
        "kind": "WeightVersion",
        "metadata": {"name": name} | annotations,
        "spec": {"fleetRef": {"name": fleet}} | _without_nulls(spec),
    }


def _without_nulls(fields: dict[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, dict) else value
        for name, value in fields.items()
        if value is not None
    }
