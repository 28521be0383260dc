"""Shares the time of the event loop among namespaces.

Everything that runs in the loop delays all others. So what a namespace's reconciles and the answers of its
workers cost is measured, and it gets more time only while it uses less than what is idle. Alone it gets
half of the loop, and n such namespaces get `1 / (n + 1)` each. A namespace is not held back while no
other one uses the loop.
"""

from __future__ import annotations

import math

REMEMBERED_SECONDS = 2.0
"""Use is an average over about this time. From rest a namespace may use 1.4 s at once."""
UNUSED = 0.001
"""Use of the loop below which a namespace delays no other one, and needs no time."""


class TimeShares:
    """How much of the loop each namespace has used lately. Times are seconds of the loop's clock."""

    def __init__(self) -> None:
        self._used: dict[str, float] = {}
        self._total = 0.0
        self._at = 0.0

    def note(self, namespace: str, seconds: float, now: float) -> None:
        """Note time that a namespace has used."""
        self._age(now)
        used = seconds / REMEMBERED_SECONDS
        self._used[namespace] = self._used.get(namespace, 0.0) + used
        self._total += used

    def wait_seconds(self, namespace: str, now: float) -> float:
        """The time until a namespace may use more; 0 if it may now."""
        used = self._used.get(namespace, 0.0)
        others = self._total - used
        if others * self._left(now) < UNUSED:
            return 0.0
        excess = (used + self._total) * self._left(now)
        return REMEMBERED_SECONDS * math.log(excess) if excess > 1 else 0.0

    def _left(self, now: float) -> float:
        """The share of the noted use that is left after this time."""
        return math.exp((self._at - now) / REMEMBERED_SECONDS)

    def _age(self, now: float) -> None:
        """Reduce all by the time that has passed, once that is worth the work."""
        if now - self._at < REMEMBERED_SECONDS / 8 and self._used:
            return
        left = self._left(now)
        aged = {name: used * left for name, used in self._used.items()}
        self._used = {name: used for name, used in aged.items() if used >= UNUSED / 100}
        self._total = sum(self._used.values())
        self._at = now
