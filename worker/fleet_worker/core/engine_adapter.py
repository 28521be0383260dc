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


def engine_name(name: str, version: str) -> str:
    """What the engine calls a version of an adapter; its outputs carry it."""
    return f"{name}{_SEPARATOR}{version}"


def version_of(name: str) -> str:
    """The version of an adapter, by the name that an output of the engine carries."""
    return name.rpartition(_SEPARATOR)[2]
