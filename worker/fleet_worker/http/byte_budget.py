"""Bounds the memory that large answers of workers take together.

One answer has a limit of its own, but a thousand hostile workers that each stop just before it would
exhaust the operator for all tenants.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class ByteBudget(Generic[T]):
    """The bytes of all answers that are kept. Nearly every answer is small, and never counts.

    Beyond `max_bytes` the largest ones are dropped, so that hostile answers give way to honest ones.

    Args:
        max_bytes: Limit for all answers that count, together.
        small_bytes: An answer of at most this size does not count, and is never dropped.
    """

    def __init__(self, *, max_bytes: int, small_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.small_bytes = small_bytes
        self._charged: dict[T, int] = {}
        self._total = 0

    @property
    def used_bytes(self) -> int:
        """The bytes that count now."""
        return self._total

    def charge(self, holder: T, size_bytes: int) -> list[T]:
        """Charge a holder with the bytes that it has now. Returns: the holders whose bytes to free."""
        self.release(holder)
        if size_bytes <= self.small_bytes:
            return []
        self._total += size_bytes
        self._charged[holder] = size_bytes
        dropped = []
        while self._total > self.max_bytes:
            largest = max(self._charged, key=self._charged.__getitem__)
            self.release(largest)
            dropped.append(largest)
        return dropped

    def release(self, holder: T) -> None:
        """Forget the bytes of a holder."""
        self._total -= self._charged.pop(holder, 0)
