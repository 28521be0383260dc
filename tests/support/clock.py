"""A clock that the tests move."""

from __future__ import annotations


class FakeClock:
    """Seconds since nothing in particular."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds
