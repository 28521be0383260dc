"""Adapters inside the engine: a name and a number for each version, never used for other weights."""

from __future__ import annotations

from dataclasses import dataclass

from fleet_worker.core.weight_names import WeightName

FIRST_NUMBER = 1001
"""The engine's own warm-up adapters are numbered from 1 to the number of its slots."""

_SEPARATOR = "@"  # in no name and no label


@dataclass(frozen=True, slots=True)
class EngineAdapter:
    """A version of an adapter, as the engine knows it.

    Fields:
        name: as `engine_name` makes it.
        number: the engine tells adapters apart by it.
        path: directory that nobody but us changes.
    """

    name: str
    number: int
    path: str

    def __str__(self) -> str:
        name, version, *_ = self.name.split(_SEPARATOR)
        return f"adapter {name} at version {version}"


def engine_name(name: str, version: str, mark: str, run_id: str | None = None) -> str:
    """What the engine calls a version of an adapter; its outputs carry it.

    Args:
        name: What requests call it.
        version: Its version.
        mark: The first 12 hex digits of its digest: two runs may count alike.
        run_id: The run that it belongs to, if one was named.
    """
    parts = (name, version, mark) if run_id is None else (name, version, mark, run_id)
    return _SEPARATOR.join(parts)


def weight_name_of(name: str) -> WeightName:
    """A version of an adapter, by the name that an output of the engine carries."""
    _, version, *more = name.split(_SEPARATOR)
    digest, run_id = (*more, None, None)[:2]
    return WeightName(version, run_id, digest)
