"""Waits between attempts that fail: they double up to a limit, and each is chosen at random.

Without that, all streams that lost the API server at one moment would return to it at one moment.
Source: client-go `wait.Backoff`, exponential backoff with equal jitter.
"""

from __future__ import annotations

import random
from collections.abc import Callable

MAX_ASKED_SECONDS = 60.0


class Backoff:
    """The waits between the attempts of one operation.

    Args:
        first_seconds: The longest first wait.
        longest_seconds: No wait is longer.
        choose: Returns a number between two others; by default a random one.
    """

    def __init__(
        self,
        first_seconds: float,
        longest_seconds: float,
        *,
        choose: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self._choose = choose
        self._seconds = first_seconds

    def next_seconds(self, *, asked_seconds: float | None = None) -> float:
        """Return the next wait, between a half of the current limit and all of it.

        The limit doubles with each call.

        `asked_seconds`: the additional wait that a server asked for; at most a minute of it is granted.
        """
        seconds, self._seconds = self._seconds, min(2 * self._seconds, self._longest_seconds)
        return self._choose(seconds / 2, seconds) + min(asked_seconds or 0.0, MAX_ASKED_SECONDS)

    def reset(self) -> None:
        """Begin again with the first wait, after a success."""
        self._seconds = self._first_seconds
