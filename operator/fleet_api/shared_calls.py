"""One call for all requests that need the same answer at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from functools import partial
from typing import Any, Generic, TypeVar

from fleet_api.loop_time import measured

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
        if not task.cancelled():
            task.exception()  # so that asyncio does not report it, if no request waits any more


async def _measured(call: Callable[[], Coroutine[Any, Any, V]]) -> V:
    return await measured(call())
