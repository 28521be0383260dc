"""Objects and directories for tests of the collector."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any

from fleet_collector.collection import Objects
from rlfleet_resources.weight_files import INDEX_FILE

Json = dict[str, Any]
BEAT = "rl/rlfleet.system"
"""The heartbeat of the operator of `a_fleet`."""
_beats = count()


def a_source(place: str) -> Json:
    return {"uri" if "://" in place else "path": place}


def a_fleet(*in_use: str, name: str = "policy", **spec: Any) -> Json:
    """A fleet as the API server has it. `in_use`: paths or URIs of its sources."""
    return {
        "metadata": {"name": name, "namespace": "rl", "generation": 3, "resourceVersion": "7"},
        "spec": {
            "model": {"source": {"path": "/models/base"}},
            "weights": {"roots": ["/x"]} | spec,
        },
        "status": {
            "observedGeneration": 3,
            "operator": "system/rlfleet",
            "sourcesInUse": [{"version": "1", "source": a_source(place)} for place in in_use],
        },
    }


def a_weight_version(folder: Path | str, version: str, *, applied: str = "", **spec: Any) -> Json:
    """A WeightVersion whose template is `step_{version}` in the folder."""
    applied = applied or version
    source = a_source(f"{folder}/step_{applied}")
    return {
        "metadata": {"name": "policy", "namespace": "rl", "generation": 5, "uid": "u-1"},
        "spec": {
            "fleetRef": {"name": "policy"},
            "version": version,
            "source": a_source(f"{folder}/step_{{version}}"),
        }
        | spec,
        "status": {"observedGeneration": 5, "applied": {"version": applied, "source": source}},
    }


def objects(weights: Iterable[Json], *fleets: Json, beat: object = None) -> Objects:
    """A look. `beat`: the last heartbeat of the operator; by default another one each time."""
    return Objects(fleets, list(weights), {BEAT: str(next(_beats) if beat is None else beat)})


def write_versions(folder: Path, *versions: str | int, base: int | None = None) -> None:
    """Directories `step_N` with two files each; with a base they are deltas."""
    for version in versions:
        made = folder / f"step_{version}"
        made.mkdir(parents=True)
        (made / "model.safetensors").write_bytes(b"w" * 100)
        (made / "config.json").write_text("{}")
        if base is not None:
            (made / INDEX_FILE).write_text(an_index(version, base))


def an_index(version: str | int, base: int) -> str:
    """The index of a delta."""
    notes = {"version": str(version), "base_version": base, "delta_encoding": "xor"}
    return json.dumps({"metadata": notes, "weight_map": {}})


def date(folder: Path) -> None:
    """Let the versions have been written in their order, long ago."""
    for made in folder.glob("step_*"):
        for path in (*made.iterdir(), made):
            os.utime(path, (int(made.name[5:]),) * 2, follow_symlinks=False)


def names_in(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())
