"""A cache with a time to live for each entry, and a maximum size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class TtlCache(Generic[K, V]):
    """Drops the oldest entry when it is full."""

    def __init__(self, size: int, monotonic: Callable[[], float]) -> None:
        self._size = size
        self._monotonic = monotonic
        self._entries: OrderedDict[K, tuple[float, V]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """The value; None without one, or after its time."""
        ends, value = self._entries.get(key, (0.0, None))
        if value is None or self._monotonic() >= ends:
            self._entries.pop(key, None)
            return None
        return value

    def put(self, key: K, value: V, seconds: float) -> None:
        """Keep a value for a time."""
        self._entries.pop(key, None)
        self._entries[key] = (self._monotonic() + seconds, value)
        while len(self._entries) > self._size:
            self._entries.popitem(last=False)

    def drop(self, key: K) -> None:
        """Forget a value."""
        self._entries.pop(key, None)

    def __len__(self) -> int:
        return len(self._entries)
