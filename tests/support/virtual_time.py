"""Runs a coroutine on a clock that jumps: waiting costs nothing, and waiting without end is an error.

The loop's time advances only when all tasks wait, straight to the next timer. Durations by the loop's
clock, sleeps and timeouts are exact, whatever the machine does.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

START_SECONDS = 1000.0
TURNS_PER_MICROSECOND = 1000


class NothingLeftToDoError(AssertionError):
    """All tasks wait and no timer will wake one: a wake-up was lost."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock advances when all tasks wait."""

    def __init__(self) -> None:
        self._selecting = _JumpingSelector()
        super().__init__(self._selecting)

    def time(self) -> float:
        """Seconds; begins at 1000."""
        return self._selecting.now

    def be_busy(self, seconds: float) -> None:
        """Let time pass as if a callback worked for these seconds."""
        self._selecting.now += seconds


class _JumpingSelector(selectors.EpollSelector):
    """Not `select`, which knows only the first 1,024 descriptors of a process."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START_SECONDS
        self._idle_turns = 0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        if not events and timeout is None:
            raise NothingLeftToDoError("every task waits for something that no timer will bring")
        before = self.now
        if not events and timeout is not None:
            self.now += max(timeout, 0)
        self._idle_turns = self._idle_turns + 1 if self.now == before else 0
        if self._idle_turns > TURNS_PER_MICROSECOND:
            # Real work takes time: a wait below the resolution of a float still ends.
            self.now += 1e-6
        return events


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on a clock of its own."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def now() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
