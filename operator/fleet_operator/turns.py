"""Shares a limited number of places among tenants, in turns.

Requests and reconciles for tenants wait here, and nothing else decides whose turn it is. The
tenant that holds the fewest places comes first, and those that hold as many take turns. A tenant gets a
place only while it holds fewer than `PLACES_FOR_EACH_FREE_ONE` times the free places.
Alone it gets three quarters of them, and n such tenants get `3 * most / (3 * n + 1)` each. A third of
such a share remains for those that come later.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

PLACES_FOR_EACH_FREE_ONE = 3

T = TypeVar("T")


class Turns(Generic[T]):
    """Items that wait for one of `most` places.

    An item has a path: its tenant, and parts of that tenant if there are any. Parts share the places of
    their tenant as tenants share all places.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._all: _Group[T] = _Group()
        self._serials = itertools.count()
        self._all_blocked = False
        """No item may go before a place is free or another path has items."""

    def __len__(self) -> int:
        """How many items wait."""
        return self._all.waiting

    def tenants(self) -> Iterator[str]:
        """The tenants that wait."""
        return (name for name, group in self._all.parts.items() if group.waiting)

    def add(self, path: Sequence[str], item: T, *, rank: float = 0.0) -> None:
        """Let an item wait. Of items with the same path the lowest rank comes first, then the oldest."""
        group = self._all
        group.waiting += 1
        for name in path:
            group = group.parts.setdefault(name, _Group())
            group.waiting += 1
        if group.waiting == 1:
            self._all_blocked = False
        heapq.heappush(group.items, (rank, next(self._serials), item))

    def take(self, may: Callable[[str], bool] | None = None) -> T | None:
        """The item whose turn it is; None if all have to wait. It holds a place until `leave`.

        `may`: whether a tenant may have a turn. None: all may.
        """
        if not self._free or self._all_blocked:
            return None
        item = self._all.take(self._free, may or _anyone)
        if item is not None:
            self._free -= 1
        else:
            self._all_blocked = may is None
        return item

    def leave(self, path: Sequence[str]) -> None:
        """Free the place of an item with this path."""
        self._free += 1
        self._all_blocked = False
        groups = [self._all]
        for name in path:
            groups.append(groups[-1].parts[name])
        for name, group, parent in zip(path, groups[1:], groups, strict=False):
            group.held -= 1
            if not group.held and not group.waiting:
                del parent.parts[name]
                break


class _Group(Generic[T]):
    """Items with one path, or the parts of one. The part that had its turn last comes last."""

    __slots__ = ("held", "items", "parts", "waiting")

    def __init__(self) -> None:
        self.held = 0
        self.waiting = 0
        self.items: list[tuple[float, int, T]] = []
        self.parts: dict[str, _Group[T]] = {}

    def take(self, free: float, may: Callable[[str], bool]) -> T | None:
        """`free`: the free places that its parts share."""
        item: T | None = None
        if self.items:
            item = heapq.heappop(self.items)[2]
        waiting = [name for name, part in self.parts.items() if part.waiting]
        for name in sorted(waiting, key=lambda name: self.parts[name].held):
            part = self.parts[name]
            room = PLACES_FOR_EACH_FREE_ONE * free - part.held
            if room <= 0:
                break
            if not may(name):
                continue
            item = part.take(room, _anyone)
            if item is not None:
                part.held += 1
                self.parts[name] = self.parts.pop(name)
                break
        if item is not None:
            self.waiting -= 1
        return item


def _anyone(_: str) -> bool:
    return True
