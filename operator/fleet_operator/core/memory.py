"""Caches what was computed from an immutable object, such as a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

V = TypeVar("V")
KEPT_AT_MOST = 256


class SpecCache(Generic[V]):
    """Values by the identity of an object and by further words. The oldest entries go first."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], tuple[object, V]] = {}

    def of(self, thing: object, *words: str, make: Callable[[], V]) -> V:
        """Returns the value for this very object and these words, and computes it once."""
        key: tuple[object, ...] = (id(thing), *words)
        known = self._known.get(key)
        if known is not None:
            return known[1]
        value = make()
        if len(self._known) >= KEPT_AT_MOST:
            del self._known[next(iter(self._known))]
        # Holds the object, so that its id is not reused.
        self._known[key] = (thing, value)
        return value
