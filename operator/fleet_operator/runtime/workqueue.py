"""Keys to reconcile: each at most once in the queue, never in two workers at a time.

A key that is added while it is worked on runs once more afterwards, so that no change is lost. A key
that is added ten times runs once, at the earliest time of the ten.

No key runs more often than `RUNS_PER_SECOND` for long, whatever adds it. A rollout needs some runs at
once, so `RUNS_AT_ONCE` may follow each other without a wait.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)

RUNS_AT_ONCE = 100
RUNS_PER_SECOND = 20.0
"""A barrier of any size takes fewer: its answers are collected for `dispatch.FOLD_SECONDS`."""

_SHORTEST_WAIT_SECONDS = 0.001
"""Longer than the resolution of the clock."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(slots=True)
class _Budget:
    """Runs that a key has left. `held_back`: it has used them up, and has waited for more since then."""

    runs: float
    counted_at: float
    held_back: bool = False

    def left(self, now: float) -> float:
        """Runs that may begin now."""
        return min(self.runs + (now - self.counted_at) * RUNS_PER_SECOND, RUNS_AT_ONCE)


class WorkQueue(Generic[Key]):
    """Deduplicating queue with delays. Times are seconds of the event loop's clock."""

    def __init__(self) -> None:
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, int, Key]] = []
        self._active: dict[Key, float] = {}
        self._budgets: dict[Key, _Budget] = {}
        """Only of keys that have not got all of their runs back."""
        self._serial = 0
        self._changed = asyncio.Event()

    def add(self, key: Key, *, after_seconds: float = 0) -> None:
        """Queue a key, to be worked on after this long at the latest."""
        due = asyncio.get_running_loop().time() + max(after_seconds, 0)
        if key in self._due and self._due[key] <= due:
            return
        self._due[key] = due
        self._serial += 1
        heapq.heappush(self._heap, (due, self._serial, key))
        self._changed.set()

    def depth(self) -> int:
        """How many keys are due and not being worked on."""
        now = asyncio.get_running_loop().time()
        return sum(due <= now and key not in self._active for key, due in self._due.items())

    def stuck_seconds(self) -> float:
        """The longest time that a key has been worked on, or has been due without a worker; 0 for an empty
        queue.
        """
        now = asyncio.get_running_loop().time()
        waiting = (due for key, due in self._due.items() if key not in self._active)
        since = min((*self._active.values(), *waiting), default=now)
        return max(now - since, 0)

    async def run(self, work: Callable[[Key], Awaitable[None]], *, workers: int) -> None:
        """Work on keys until cancelled. `work` must not raise."""
        async with asyncio.TaskGroup() as group:
            for _ in range(workers):
                group.create_task(self._worker(work))

    async def _worker(self, work: Callable[[Key], Awaitable[None]]) -> None:
        while True:
            key = await self._next()
            try:
                await work(key)
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                # A task that the work waits for was cancelled: kopf does so when it ends.
                self.add(key)
            finally:
                self._active.pop(key, None)
                # This key may be due again: wake a worker.
                self._changed.set()

    async def _next(self) -> Key:
        while True:
            self._changed.clear()
            key, wait_seconds = self._take()
            if key is not None:
                return key
            try:
                async with asyncio.timeout(wait_seconds):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _take(self) -> tuple[Key | None, float | None]:
        """The next key that is due and idle, else how long to wait for one."""
        now = asyncio.get_running_loop().time()
        postponed: list[tuple[float, int, Key]] = []
        try:
            while self._heap:
                due, serial, key = heapq.heappop(self._heap)
                if self._due.get(key) != due:
                    continue  # Replaced by an earlier time.
                if due > now:
                    heapq.heappush(self._heap, (due, serial, key))
                    return None, due - now
                if key in self._active:
                    postponed.append((due, serial, key))
                    continue
                if (wait_seconds := self._wait_seconds(key, now)) > 0:
                    self._due[key] = now + wait_seconds
                    heapq.heappush(self._heap, (self._due[key], serial, key))
                    continue
                del self._due[key]
                self._active[key] = now
                return key, None
            return None, None
        finally:
            for entry in postponed:
                heapq.heappush(self._heap, entry)

    def _wait_seconds(self, key: Key, now: float) -> float:
        """Take one run from the budget of a key. Returns: seconds until it has one; 0 if it was taken."""
        budget = self._budgets.setdefault(key, _Budget(RUNS_AT_ONCE, now))
        left = budget.left(now)
        if left < 1:
            if not budget.held_back:
                budget.held_back = True
                logger.warning(
                    "%s is reconciled more often than %.0f times a second: something changes back what the"
                    " operator does, or changes without an end. Further reconciles wait",
                    key,
                    RUNS_PER_SECOND,
                )
            return max((1 - left) / RUNS_PER_SECOND, _SHORTEST_WAIT_SECONDS)
        budget.runs, budget.counted_at = left - 1, now
        budget.held_back = budget.held_back and left < RUNS_AT_ONCE / 2
        if len(self._budgets) > len(self._due) + len(self._active) + RUNS_AT_ONCE:
            full = [k for k, b in self._budgets.items() if b.left(now) >= RUNS_AT_ONCE]
            for gone in full:
                del self._budgets[gone]
        return 0.0


def _is_cancelled() -> bool:
    """Whether the current task itself was cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
