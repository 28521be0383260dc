"""Writes that the API server accepts, and that do not last: an admission webhook changes them at once, or
another controller changes the object back.

Each is repeated ever later. It is a problem while its effect is missing, and after it was undone repeatedly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Hashable
from typing import Generic, TypeVar

from fleet_operator.errors import FleetError, Retryable, WriteUndone
from fleet_operator.runtime.attempts import Attempts

MOST_WRITES = 1000
"""The number of writes that are remembered."""

K = TypeVar("K", bound=Hashable)


class RepeatedWrites(Generic[K]):
    """Writes by key. `clock`: monotonic seconds; by default the event loop's."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or (lambda: asyncio.get_running_loop().time())
        self._attempts: Attempts[K] = Attempts(kept=MOST_WRITES)
        self._titles: dict[K, str] = {}

    def note(self, key: K, title: str, *, lost: str = "") -> None:
        """Note a write that was accepted.

        Args:
            key: The write.
            title: What it does, for messages.
            lost: What the API server has not stored of it.
        """
        now = self._clock()
        attempt = self._attempts.begin(key, now)
        if lost:
            attempt.shown = False
        else:
            attempt.note_shown()
        self._titles[key] = f"{title}: {lost}" if lost else title
        # Seldom, so that a write costs the same after many others.
        if len(self._titles) > 2 * MOST_WRITES:
            known = dict(self._attempts.lately(now))
            self._titles = {k: t for k, t in self._titles.items() if k in known}

    def wait_seconds(self, key: K) -> float:
        """The time until a write may be repeated; 0 if it may be done now."""
        return self._attempts.wait_seconds(key, self._clock())

    def error_of(self, key: K) -> FleetError | None:
        """Why a write is repeated, or must wait; None if it may be done, and nothing is known about it."""
        now, attempt = self._clock(), self._attempts.of(key)
        if attempt is None or attempt.is_over(now):
            return None
        title = self._titles.get(key, "")
        if not attempt.shown:
            return WriteUndone(f"{title}: an admission webhook changes what the operator writes")
        if attempt.is_undone(now):
            return WriteUndone(
                f"{title}: another controller, or a user, has changed it back repeatedly"
            )
        seconds = attempt.wait_seconds(now)
        return (
            Retryable(f"{title}: it was changed back", after_seconds=seconds) if seconds else None
        )

    def undone(self) -> list[FleetError]:
        """The problems of all writes that do not last."""
        errors = (self.error_of(key) for key, _ in self._attempts.lately(self._clock()))
        return [e for e in errors if isinstance(e, WriteUndone)]

    def keep_missing(self, keys: Collection[K]) -> None:
        """Forget the writes without an effect that are not needed any more. `keys`: those that are."""
        for key, attempt in self._attempts.lately(self._clock()):
            if key not in keys and not attempt.shown:
                self.forget(key)

    def forget(self, key: K) -> None:
        """Let the next write of this key be the first one again."""
        self._attempts.forget(key)
        self._titles.pop(key, None)
