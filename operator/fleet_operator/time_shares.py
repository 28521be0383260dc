"""Shares time among namespaces: that of the event loop, or that of the API server (`places`).

Everything that runs in the loop delays all others. So what a namespace's reconciles and the answers of its
workers cost is measured, and it gets more time only while it uses less than what is idle. Next to others that use
little it gets half of the time, and n such namespaces get `1 / (n + 1)` each. A namespace is not held back while
no other one uses any. Nor does it wait while it has used less than half of an equal share: the requests at the API
server may have used more time than there is.
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
        if not self.is_shared(namespace, now):
            return 0.0
        used = self._used.get(namespace, 0.0)
        # Times of what it may use: what is idle, or half of an equal share.
        excess = min(used + self._total, used * 2 * len(self._used)) * self._left(now)
        return REMEMBERED_SECONDS * math.log(excess) if excess > 1 else 0.0

    def is_shared(self, namespace: str, now: float) -> bool:
        """Whether other namespaces use any time."""
        return (self._total - self._used.get(namespace, 0.0)) * self._left(now) >= UNUSED

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
