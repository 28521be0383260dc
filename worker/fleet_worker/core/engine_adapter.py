"""Adapters inside the engine: a name and a number for each version, never used for other weights."""

from __future__ import annotations

from dataclasses import dataclass

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
        name, _, version = self.name.rpartition(_SEPARATOR)[0].partition(_SEPARATOR)
        return f"adapter {name} at version {version}"


def engine_name(name: str, version: str, mark: str) -> str:
    """What the engine calls a version of an adapter; its outputs carry it.

    Args:
        name: What requests call it.
        version: Its version.
        mark: The first 12 hex digits of its digest: two runs may count alike.
    """
    return _SEPARATOR.join((name, version, mark))


def version_of(name: str) -> str:
    """The version of an adapter, by the name that an output of the engine carries."""
    return name.split(_SEPARATOR)[1]


def digest_of(name: str) -> str | None:
    """The first 12 hex digits of its digest, by the name that an output of the engine carries."""
    parts = name.split(_SEPARATOR)
    return parts[2] if len(parts) > 2 else None
