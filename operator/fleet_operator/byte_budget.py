"""Bounds the memory that large answers of workers take together.

One answer has a limit of its own, but a thousand hostile workers that each stop just before it would
exhaust the operator for all tenants.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ByteBudget(Generic[T]):
    """The bytes of all that is held. Nearly every answer is small, and never counts.

    Beyond `max_bytes` the largest ones are abandoned, so that hostile answers give way to honest ones.

    Args:
        max_bytes: Limit for all answers that count, together.
        small_bytes: An answer of at most this size does not count, and is never abandoned.
    """

    def __init__(self, *, max_bytes: int, small_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.small_bytes = small_bytes
        self._held: dict[T, int] = {}
        self._total = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that count now."""
        return self._total

    def hold(self, holder: T, size_bytes: int) -> list[T]:
        """Note the size of what a holder holds now. Returns: the holders whose bytes to free."""
        self.release(holder)
        if size_bytes <= self.small_bytes:
            return []
        self._total += size_bytes
        self._held[holder] = size_bytes
        abandoned = []
        while self._total > self.max_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            self.release(largest)
            abandoned.append(largest)
        return abandoned

    def release(self, holder: T) -> None:
        """Forget what a holder held."""
        self._total -= self._held.pop(holder, 0)
