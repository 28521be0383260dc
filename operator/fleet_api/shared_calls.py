"""One call or read for all requests that need the same answer at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from fleet_api.loop_time import measured, paced

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SharedCalls(Generic[K, V]):
    """Calls in progress, by key."""

    def __init__(self) -> None:
        self._tasks: dict[K, asyncio.Task[V]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._tasks

    async def join(self, key: K, call: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of the call in progress for this key, or of a new one. Errors: those of the call."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.create_task(_measured(call))
            task.add_done_callback(partial(self._ended, key))
        # The first client may leave, and others wait for the same call.
        return await asyncio.shield(task)

    def _ended(self, key: K, task: asyncio.Task[V]) -> None:
        del self._tasks[key]
        _take_error(task)


class SharedReads(Generic[K, V]):
    """Reads of things that change, by key: one at a time, for all requests that came before it began.

    So no result is older than its request. Any number of requests for one thing cost the API server and the event
    loop as much as two.
    """

    def __init__(self) -> None:
        self._running: dict[K, asyncio.Task[V]] = {}
        self._next: dict[K, asyncio.Task[V]] = {}

    async def join(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """The result of a read that begins after this call. Errors: those of the read."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._run(key, read))
            task.add_done_callback(_take_error)
        # The first client may leave, and others wait for the same read.
        return await asyncio.shield(task)

    async def _run(self, key: K, read: Callable[[], Coroutine[Any, Any, V]]) -> V:
        if (before := self._running.get(key)) is not None:
            await asyncio.wait([before])
        # Requests of this tenant that wait for their turn come first: their clients may ask again, and share this read.
        await paced()
        task = self._running[key] = self._next.pop(key)
        try:
            return await measured(read())
        finally:
            if self._running[key] is task:
                del self._running[key]


def _take_error(task: asyncio.Task[Any]) -> None:
    """Let asyncio not report the error of a task that no request waits for any more."""
    if not task.cancelled():
        task.exception()


async def _measured(call: Callable[[], Coroutine[Any, Any, V]]) -> V:
    return await measured(call())
