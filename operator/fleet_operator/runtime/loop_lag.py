"""Measures the lag of the event loop, which delays everything that the operator does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SAMPLE_SECONDS = 0.05
WINDOW_SECONDS = 60.0


class LoopLag:
    """Samples the lag of the event loop that `run` runs in. `used_seconds`: returns the processor time of
    the loop's thread.
    """

    def __init__(self, used_seconds: Callable[[], float] = time.thread_time) -> None:
        self._used_seconds = used_seconds
        self._now = (0.0, 0.0)
        self._before = (0.0, 0.0)
        self._window_ends = 0.0
        self._timer: asyncio.TimerHandle

    def worst_seconds(self) -> float:
        """Worst lag of the last one to two windows, in seconds.

        The measured lag can be up to one sample shorter than the real one.
        """
        return max(self._now[0], self._before[0])

    def worst_busy_seconds(self) -> float:
        """Worst lag without the time in which the thread did not have the processor: the part that the
        operator causes, and not the machine.
        """
        return max(self._now[1], self._before[1])

    async def run(self) -> None:
        """Sample until cancelled."""
        loop = asyncio.get_running_loop()
        self._window_ends = loop.time() + WINDOW_SECONDS
        self._sample_again(loop, self._used_seconds())
        try:
            await loop.create_future()
        finally:
            self._timer.cancel()

    def _sample_again(self, loop: asyncio.AbstractEventLoop, used: float) -> None:
        # Timers instead of a task that sleeps: sampling is a good part of the processor time at rest.
        due = loop.time() + SAMPLE_SECONDS
        self._timer = loop.call_at(due, self._sample, loop, due, used)

    def _sample(self, loop: asyncio.AbstractEventLoop, due: float, used_before: float) -> None:
        now, used = loop.time(), self._used_seconds()
        lag = now - due
        busy = min(lag, used - used_before)
        self._now = max(self._now[0], lag), max(self._now[1], busy)
        if now >= self._window_ends:
            self._window_ends = now + WINDOW_SECONDS
            self._before, self._now = self._now, (0.0, 0.0)
        self._sample_again(loop, used)
