"""Bounds the memory of answers that have not ended, over all connections of a client.

One answer has a limit of its own, but a thousand hostile workers that each stop one byte before it would
exhaust the operator for all tenants.
"""

from __future__ import annotations

from typing import Protocol

SMALL_BYTES = 8 * 1024
"""An unfinished answer of up to this size does not count, and is never refused. A state has 2 KiB."""
_MIB = 1024 * 1024


class Holder(Protocol):
    """A connection with an unfinished answer."""

    def refuse(self, message: str) -> None:
        """End the connection and its request."""


class BufferBudget:
    """The bytes of unfinished answers. Nearly every answer arrives in one piece, and never counts.

    Beyond `most_bytes` the largest one is refused, so that hostile answers give way to honest ones.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._held: dict[Holder, int] = {}
        self._total = 0

    @property
    def held_bytes(self) -> int:
        """The bytes that count now."""
        return self._total

    def hold(self, holder: Holder, size_bytes: int) -> None:
        """Note the size of an unfinished answer. It may be refused at once."""
        if size_bytes <= SMALL_BYTES:
            return
        self._total += size_bytes - self._held.get(holder, 0)
        self._held[holder] = size_bytes
        while self._total > self._most_bytes:
            largest = max(self._held, key=self._held.__getitem__)
            self.release(largest)
            largest.refuse(
                "its answer has not ended, and the unfinished answers of all workers have more than "
                f"{self._most_bytes / _MIB:g} MiB"
            )

    def release(self, holder: Holder) -> None:
        """Forget an answer that has ended or was refused."""
        self._total -= self._held.pop(holder, 0)
