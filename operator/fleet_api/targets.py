"""The workers of a fleet that can be called, without reading all pods for each call.

1,000 pods are 9 MB of JSON. The API server's table of the same pods has a sixtieth of it, and shows
whether any of them has changed since an earlier call. The table is not a stable API, so all pods are
read if it lacks a column. A wrong guess does no harm: calls are signed for one pod.

Source: Kubernetes API concepts, "Receiving resources as Tables".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_api.fleets import Fleet, Fleets
from fleet_api.ports import Target
from fleet_api.workers import targets_of

MAX_FLEETS = 64
_COLUMNS = ("Name", "Status", "Restarts", "IP")

Row = tuple[str, ...]
"""The cells of a pod that change when it goes, starts again or gets another address."""


@dataclass(frozen=True, slots=True)
class Found:
    """The workers of a fleet.

    Fields:
        targets: the workers that have started, by ordinal.
        pods: the number of all pods.
    """

    targets: Sequence[Target]
    pods: int


@dataclass(frozen=True, slots=True)
class _Known:
    """An earlier answer, of a time when all pods had started.

    Fields:
        fleet: uid and generation of the fleet.
        rows: the row of each pod, by name.
    """

    fleet: tuple[str, int]
    rows: Mapping[str, Row]
    found: Found


class Targets:
    """The workers of fleets."""

    def __init__(self, reader: Fleets) -> None:
        self._reader = reader
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    async def of(self, fleet: Fleet) -> Found:
        """The workers of a fleet now. Errors: those of `Cluster`."""
        key, version = (fleet.namespace, fleet.name), (fleet.uid, fleet.generation)
        rows = rows_of(await self._reader.pod_table(fleet))
        known = self._known.get(key)
        if known is not None and rows is not None and (known.fleet, known.rows) == (version, rows):
            self._known.move_to_end(key)
            return known.found
        pods = await self._reader.pods(fleet)
        found = Found(targets_of(fleet, pods), len(pods))
        self.forget(fleet)
        # A worker that starts can be called soon, and its row does not show when.
        if rows is not None and len(found.targets) == len(pods) == len(rows):
            self._known[key] = _Known(version, rows, found)
            if len(self._known) > MAX_FLEETS:
                self._known.popitem(last=False)
        return found

    def forget(self, fleet: Fleet) -> None:
        """Read all pods at the next call."""
        self._known.pop((fleet.namespace, fleet.name), None)


def rows_of(table: Mapping[str, Any]) -> dict[str, Row] | None:
    """The rows of a table of pods by name; None if it lacks a column or names a pod twice."""
    try:
        columns = [column["name"] for column in table["columnDefinitions"]]
        places = [columns.index(name) for name in _COLUMNS]
        rows = [[str(row["cells"][place]) for place in places] for row in table["rows"] or ()]
    except (KeyError, IndexError, TypeError, ValueError):
        return None
    found: dict[str, Row] = {}
    for name, status, restarts, ip in rows:
        # "2 (5m ago)": the time since the last start changes by itself.
        found[name] = (status, restarts.partition(" ")[0], ip)
    return found if len(found) == len(rows) else None
