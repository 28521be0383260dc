"""Spaces out what is done repeatedly, because its effect is not seen or does not last.

The operator acts on what it sees, so it does the same again only if the effect is not there. The first
repetition of something that had its effect comes at once. Each further one waits longer, up to a limit,
until the effect has lasted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

FIRST_SECONDS = 1.0
LONGEST_SECONDS = 5.0
"""Four lost renewals of a pause must fit into what is left of its lease (`RENEW_BELOW_SECONDS`)."""
_MOST_DOUBLINGS = 10
LASTS_SECONDS = 8.0
"""An effect that was there for this long has lasted. Pauses are renewed every 10 s."""
FORGOTTEN_SECONDS = 60.0
"""An attempt without an effect is forgotten when none has followed for this long."""
REPORTED_SECONDS = 60.0
REPORTED_ATTEMPTS = 3
"""Attempts that have lasted for this long, in this number, are not a passing trouble."""
KEPT = 16

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Attempt:
    """One thing that was done several times. Times are seconds of a monotonic clock.

    Fields:
        count: how often, without an effect that lasted.
        first_at, last_at: when the first and the last time was.
        shown: whether the effect was seen since the last time.
    """

    count: int
    first_at: float
    last_at: float
    shown: bool = False

    def wait_seconds(self, now: float) -> float:
        """The time until it may be done again; 0 if it may be done now."""
        doublings = self.count - (2 if self.shown else 1)
        if doublings < 0:
            return 0.0
        pause_seconds = LONGEST_SECONDS
        if doublings < _MOST_DOUBLINGS:
            pause_seconds = min(FIRST_SECONDS * (1 << doublings), LONGEST_SECONDS)
        return max(self.last_at + pause_seconds - now, 0.0)

    def note_shown(self) -> None:
        """Note that its effect was seen. Attempts before that do not count as ones that did not last."""
        if not self.shown:
            self.count, self.first_at, self.shown = 1, self.last_at, True

    def is_over(self, now: float) -> bool:
        """Whether its effect has lasted, or it is not done any more."""
        return now - self.last_at >= (LASTS_SECONDS if self.shown else FORGOTTEN_SECONDS)

    def is_undone(self, now: float) -> bool:
        """Whether its effect was there several times and did not last."""
        return self.shown and self.count >= REPORTED_ATTEMPTS and not self.is_over(now)

    @property
    def lasts(self) -> bool:
        """Whether it has been tried in vain for longer than a passing trouble lasts."""
        seconds = self.last_at - self.first_at
        return self.count >= REPORTED_ATTEMPTS and seconds >= REPORTED_SECONDS


class Attempts(Generic[K]):
    """The last attempts, by key. `kept`: how many keys are remembered; the oldest are forgotten."""

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._known: dict[K, Attempt] = {}

    def begin(self, key: K, now: float) -> Attempt:
        """Note that something is done now."""
        known = self._known.pop(key, None)
        if known is None or known.is_over(now):
            known = Attempt(0, now, now)
        known.count, known.last_at = known.count + 1, now
        self._known[key] = known
        if len(self._known) > self._kept:
            del self._known[next(iter(self._known))]
        return known

    def of(self, key: K) -> Attempt | None:
        """The attempts of a key; None without any."""
        return self._known.get(key)

    def wait_seconds(self, key: K, now: float) -> float:
        """The time until something may be done again; 0 if it may be done now."""
        known = self._known.get(key)
        return 0.0 if known is None else known.wait_seconds(now)

    def lately(self, now: float) -> list[tuple[K, Attempt]]:
        """The attempts of the last time, which may come again."""
        return [(key, known) for key, known in self._known.items() if not known.is_over(now)]

    def forget(self, key: K) -> None:
        """Let the next attempt be the first one again."""
        self._known.pop(key, None)
