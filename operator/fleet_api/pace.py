"""Lets requests go on a few at a time, in turns by their tenant, with a look at the network in between.

Else all requests of one moment, or all that wait for one read, run before the request of another tenant is read.
"""

from __future__ import annotations

import asyncio
from collections import deque

AT_ONCE = 4
"""Between two looks at the network. One takes 0.1 to 0.3 ms of the event loop."""


class Pace:
    """The requests that wait to go on."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The tenant whose turn is next comes first."""
        self._gone = 0
        """Have gone on since the last look at the network."""

    async def turn(self, tenant: str) -> None:
        """Wait until a request of this tenant may go on."""
        loop = asyncio.get_running_loop()
        if not self._gone:
            loop.call_soon(self._next)
        if self._gone < AT_ONCE:
            self._gone += 1
            return
        turn = loop.create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        await turn

    def _next(self) -> None:
        self._gone = 0
        while self._waiting and self._gone < AT_ONCE:
            tenant = next(iter(self._waiting))
            waiting = self._waiting.pop(tenant)
            turn = waiting.popleft()
            if waiting:
                self._waiting[tenant] = waiting
            if not turn.done():
                turn.set_result(None)
                self._gone += 1
        if self._gone:
            asyncio.get_running_loop().call_soon(self._next)
