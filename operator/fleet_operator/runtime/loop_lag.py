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
        while True:
            window_ends = loop.time() + WINDOW_SECONDS
            while (now := loop.time()) < window_ends:
                due, used = now + SAMPLE_SECONDS, self._used_seconds()
                await asyncio.sleep(SAMPLE_SECONDS)
                lag = loop.time() - due
                busy = min(lag, self._used_seconds() - used)
                self._now = max(self._now[0], lag), max(self._now[1], busy)
            self._before, self._now = self._now, (0.0, 0.0)
