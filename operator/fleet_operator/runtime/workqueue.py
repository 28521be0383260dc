"""Keys to reconcile: each at most once in the queue, never in two workers at a time.

A key that is added while it is worked on runs once more afterwards, so that no change is lost. A key
that is added ten times runs once, at the earliest time of the ten.

Whose turn it is among the keys that are due:

* Keys with a deadline come before all others, and have workers of their own. Their tenants take turns, so
  that no tenant can keep the others waiting with deadlines. Within a tenant the first deadline comes first.
* The tenants of the other keys take turns, too. A tenant that uses more than its share of the event loop's
  time waits (`TimeShares`).
* No key runs more often than `RUNS_PER_SECOND` for long, whatever adds it. A rollout needs some runs at
  once, so `RUNS_AT_ONCE` may follow each other without a wait.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from fleet_operator.measured import Measured
from fleet_operator.time_shares import TimeShares
from fleet_operator.turns import Turns

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
    """Deduplicating queue with delays. Times are seconds of the event loop's clock.

    Args:
        workers: How many keys without a deadline are worked on at once.
        urgent_workers: How many with a deadline.
        tenant: Whose key it is.
        deadline: Until when a key must be worked on, at a time; None if it can wait for its turn. Asked
            when a key is due.
        shares: Time that tenants have used.
        begun: Called for each key that is begun, with the seconds for which it was due.
    """

    def __init__(
        self,
        *,
        workers: int,
        urgent_workers: int,
        tenant: Callable[[Key], str],
        deadline: Callable[[Key, float], float | None],
        shares: TimeShares,
        begun: Callable[[Key, float], None] = lambda *_: None,
    ) -> None:
        self._numbers = workers, urgent_workers
        self._tenant = tenant
        self._deadline = deadline
        self._shares = shares
        self._begun = begun
        self._due: dict[Key, float] = {}
        """Of every key in the queue."""
        self._later: list[tuple[float, int, Key]] = []
        self._in_turn: Turns[Key] = Turns(workers)
        self._urgent: Turns[Key] = Turns(urgent_workers)
        self._ready: dict[Key, Turns[Key]] = {}
        """Where a key that is due waits. Its entries elsewhere do not count any more."""
        self._active: dict[Key, float] = {}
        self._again: set[Key] = set()
        """Keys that are due, and are worked on."""
        self._began_at = 0.0
        self._budgets: dict[Key, _Budget] = {}
        """Only of keys that have not got all of their runs back."""
        self._serial = 0
        self._changed = asyncio.Event()

    def add(self, key: Key, *, after_seconds: float = 0) -> None:
        """Queue a key, to be worked on after this long at the latest."""
        now = asyncio.get_running_loop().time()
        due = now + max(after_seconds, 0)
        if key in self._due and self._due[key] <= due:
            if self._ready.get(key) is self._in_turn and self._deadline(key, now) is not None:
                self._make_ready(key, now)
                self._changed.set()
            return
        self._postpone(key, due)
        self._changed.set()

    def depth(self) -> int:
        """How many keys are due and not being worked on."""
        now = asyncio.get_running_loop().time()
        return sum(due <= now and key not in self._active for key, due in self._due.items())

    def stuck_seconds(self) -> float:
        """The longest time that a key has been worked on, or for which keys are due and none was begun; 0
        for an empty queue.
        """
        now = asyncio.get_running_loop().time()
        waiting = (due for key, due in self._due.items() if key not in self._active)
        idle_since = max(min(waiting, default=now), self._began_at)
        return max(now - min((*self._active.values(), idle_since)), 0)

    async def run(self, work: Callable[[Key], Coroutine[Any, Any, None]]) -> None:
        """Work on keys until cancelled. `work` must not raise."""
        async with asyncio.TaskGroup() as group:
            for lane, number in zip((self._in_turn, self._urgent), self._numbers, strict=True):
                for _ in range(number):
                    group.create_task(self._worker(lane, work))

    async def _worker(
        self, lane: Turns[Key], work: Callable[[Key], Coroutine[Any, Any, None]]
    ) -> None:
        while True:
            key = await self._next(lane)
            run = Measured(work(key))
            try:
                await run
            except asyncio.CancelledError:
                if _is_cancelled():
                    raise
                # A task that the work waits for was cancelled: kopf does so when it ends.
                self.add(key)
            finally:
                self._end(lane, key, run.seconds)

    def _end(self, lane: Turns[Key], key: Key, seconds: float) -> None:
        now = asyncio.get_running_loop().time()
        tenant = self._tenant(key)
        self._shares.note(tenant, seconds, now)
        lane.leave((tenant,))
        del self._active[key]
        if key in self._again:
            self._again.discard(key)
            self._make_ready(key, now)
        self._changed.set()

    async def _next(self, lane: Turns[Key]) -> Key:
        while True:
            self._changed.clear()
            now = asyncio.get_running_loop().time()
            self._collect(now)
            key = self._take(lane, now)
            if key is not None:
                return key
            try:
                async with asyncio.timeout(self._wait_for_next(lane, now)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    def _collect(self, now: float) -> None:
        """Let the keys that have become due wait for their turns."""
        while self._later and self._later[0][0] <= now:
            due, _, key = heapq.heappop(self._later)
            if self._due.get(key) != due or key in self._ready:
                continue  # Replaced by an earlier time.
            if key in self._active:
                self._again.add(key)
            else:
                self._make_ready(key, now)

    def _make_ready(self, key: Key, now: float) -> None:
        deadline = self._deadline(key, now)
        lane, rank = self._in_turn, self._due[key]
        if deadline is not None:
            lane, rank = self._urgent, deadline
        self._ready[key] = lane
        lane.add((self._tenant(key),), key, rank=rank)

    def _take(self, lane: Turns[Key], now: float) -> Key | None:
        """The key whose turn it is; None if all have to wait."""
        while (key := lane.take(lambda t: not self._held_back_seconds(lane, t, now))) is not None:
            if self._ready.get(key) is not lane:
                lane.leave((self._tenant(key),))  # it was added elsewhere since then
                continue
            del self._ready[key]
            if (wait_seconds := self._wait_seconds(key, now)) > 0:
                lane.leave((self._tenant(key),))
                self._postpone(key, now + wait_seconds)
                continue
            self._begun(key, max(now - self._due.pop(key), 0.0))
            self._active[key] = self._began_at = now
            return key
        return None

    def _postpone(self, key: Key, due: float) -> None:
        self._due[key] = due
        self._serial += 1
        heapq.heappush(self._later, (due, self._serial, key))

    def _held_back_seconds(self, lane: Turns[Key], tenant: str, now: float) -> float:
        """How long a tenant has to wait for time. Keys with a deadline do not."""
        return 0.0 if lane is self._urgent else self._shares.wait_seconds(tenant, now)

    def _wait_for_next(self, lane: Turns[Key], now: float) -> float | None:
        """Seconds until a key may become due or a tenant may go on; None if neither will without a change."""
        waits = [self._held_back_seconds(lane, t, now) for t in lane.tenants()]
        waits = [max(seconds, _SHORTEST_WAIT_SECONDS) for seconds in waits if seconds]
        if self._later:
            waits.append(self._later[0][0] - now)
        return min(waits, default=None)

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
