"""Objects of the chart, as they were recorded: all of the defaults, and those that other values change."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

GOLDEN = Path(__file__).parents[1] / "cluster/golden/chart"
DEFAULTS = "defaults"
_GONE = "objects of the defaults that are gone"
Json = dict[str, Any]


def recorded(name: str) -> list[Json]:
    """The objects that a set of values renders, in the order of their names."""
    found: dict[str, Json] = {}
    for file in dict.fromkeys((DEFAULTS, name)):
        for document in yaml.safe_load_all((GOLDEN / f"{file}.yaml").read_text()):
            for gone in document.get(_GONE, ()):
                del found[gone]
            if _GONE not in document:
                found |= _named([document])
    return [found[key] for key in sorted(found)]


def record(name: str, objects: Iterable[Json]) -> None:
    """Record what a set of values renders. The defaults come first."""
    defaults = {} if name == DEFAULTS else _named(recorded(DEFAULTS))
    made = _named(objects)
    gone = sorted(defaults.keys() - made.keys())
    changed = [made[key] for key in sorted(made) if defaults.get(key) != made[key]]
    documents = [{_GONE: gone}, *changed] if gone else changed
    (GOLDEN / f"{name}.yaml").write_text(yaml.safe_dump_all(documents))


def text(objects: Iterable[Json]) -> list[str]:
    """The lines of objects, in the order of their names."""
    named = _named(objects)
    return yaml.safe_dump_all(named[key] for key in sorted(named)).splitlines()


def _named(objects: Iterable[Json]) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for one in objects:
        name = f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}"
        assert name not in found, f"the chart has {name} twice"
        found[name] = one
    return found
