"""Finds the WeightVersion that steers a fleet: the oldest one that names it, as the operator does.

A namespace may have thousands of WeightVersions, and a user can make each as large as the API server takes.
So they are never read whole: the API server's table has some words of each, and the steering one is then
read by its name. That it is the oldest one holds until it is deleted, so the next requests read only this
object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any, NamedTuple

from fleet_api.lists import table_pages
from fleet_api.ports import Cluster
from fleet_api.problems import Problem
from fleet_api.ttl_cache import TtlCache
from fleet_operator.places import Places
from rlfleet.errors import NotFound
from rlfleet.ports import Json, Kind
from rlfleet_resources import names

KNOWN_SECONDS = 5.0
"""Two objects of one second are ordered by name, so one that is made later may be the first."""
MAX_KNOWN = 4096
_COLUMNS = ("Name", "Fleet", "Adapter", "Created")

Steered = tuple[str, str, str]
"""Namespace, fleet and adapter; the adapter is empty for base weights."""


class _Known(NamedTuple):
    name: str
    uid: str


class Steering:
    """The steering WeightVersions of a cluster."""

    def __init__(self, cluster: Cluster, places: Places, monotonic: Callable[[], float]) -> None:
        self._cluster = cluster
        self._places = places
        self._known: TtlCache[Steered, _Known] = TtlCache(MAX_KNOWN, monotonic)

    async def of(self, steered: Steered) -> Json | None:
        """The steering object; None without one. Errors: Problem 502; those of `Cluster`."""
        namespace, fleet, adapter = steered
        known = self._known.get(steered)
        if known is not None:
            found = await self._get(steered, known.name)
            if found is not None and found["metadata"]["uid"] == known.uid:
                return found
        path = f"/apis/{names.API_VERSION}/namespaces/{namespace}/{names.WEIGHTS_PLURAL}"
        tables = table_pages(self._cluster, self._places, namespace, path)
        candidates = [row async for page in tables for row in rows_of(page, fleet, adapter)]
        for _, name in sorted(candidates):
            found = await self._get(steered, name)
            if found is not None:
                self._known.put(steered, _Known(name, found["metadata"]["uid"]), KNOWN_SECONDS)
                return found
        return None

    async def _get(self, steered: Steered, name: str) -> Json | None:
        """The object, if it still names the fleet and the adapter."""
        namespace, fleet, adapter = steered
        try:
            async with self._places.of(namespace):
                found = await self._cluster.of(namespace).get(Kind.WEIGHTS, name)
        except NotFound:
            return None
        spec = spec_of(found, names.WEIGHTS_KIND)
        is_same = (spec["fleetRef"]["name"], spec.get("adapter", "")) == (fleet, adapter)
        return found if is_same else None


def spec_of(found: Mapping[str, Any], kind: str) -> Json:
    """The spec of an object. Errors: Problem 502 for one that is too large to be read."""
    spec: Json | None = found.get("spec")
    if spec is None:
        metadata = found["metadata"]
        raise Problem(
            HTTPStatus.BAD_GATEWAY,
            "SpecTooLarge",
            f"{kind} {metadata['name']!r} in namespace {metadata['namespace']!r} has a larger spec than the operator "
            "and the RL API read; make it smaller",
        )
    return spec


def rows_of(table: Mapping[str, Any], fleet: str, adapter: str) -> list[tuple[str, str]]:
    """Creation and name of each WeightVersion in a table that names this fleet and adapter.

    Errors: Problem 502 if the table lacks a column.
    """
    columns = [column["name"] for column in table["columnDefinitions"]]
    try:
        places = [columns.index(name) for name in _COLUMNS]
    except ValueError as error:
        raise Problem(
            HTTPStatus.BAD_GATEWAY,
            "UnreadableFleet",
            "the CRD of WeightVersions lacks a column that this release reads; install the API and the CRDs "
            "of one release",
        ) from error
    rows = ([row["cells"][place] or "" for place in places] for row in table["rows"] or ())
    return [(made, name) for name, of, part, made in rows if (of, part) == (fleet, adapter)]
