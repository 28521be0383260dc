"""Turns of namespaces at the API server, whose answers take memory while they are read and parsed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 8
OF_ONE_NAMESPACE = 2


class Turns:
    """Limits how many objects and pages are read at once.

    Each namespace has few requests among those that wait for a turn. So however many it sends, a request of
    another one waits only for a few of them.
    """

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(AT_ONCE)
        self._of: dict[str, asyncio.Semaphore] = {}
        self._users: Counter[str] = Counter()

    @asynccontextmanager
    async def of(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn. The block lasts until the answer has been read."""
        own = self._of.setdefault(namespace, asyncio.Semaphore(OF_ONE_NAMESPACE))
        self._users[namespace] += 1
        try:
            async with own, self._all:
                yield
        finally:
            self._users[namespace] -= 1
            if not self._users[namespace]:
                del self._users[namespace], self._of[namespace]
