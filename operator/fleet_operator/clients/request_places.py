"""Limits how many requests the API server gets at once. Namespaces share the places."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fleet_operator.turns import Turns

_NAMESPACES = "namespaces"


class RequestPlaces:
    """Places of requests. Those that wait for one take turns by the namespace in their paths."""

    def __init__(self, most: int) -> None:
        self._turns: Turns[tuple[tuple[str], asyncio.Future[None]]] = Turns(most)

    @asynccontextmanager
    async def take(self, path: str) -> AsyncIterator[None]:
        """Hold a place for a request, once its turn has come."""
        tenant = (namespace_of(path),)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.add(tenant, (tenant, turn))
        self._go_on()
        try:
            await turn
            yield
        finally:
            # A request that was cancelled while it waited has no place, unless it got one just then.
            if not turn.cancelled():
                self._turns.leave(tenant)
                self._go_on()

    def _go_on(self) -> None:
        """Give the free places to those whose turn it is. A cancelled one leaves its place to the next."""
        while (waiting := self._turns.take()) is not None:
            tenant, turn = waiting
            if turn.done():
                self._turns.leave(tenant)
            else:
                turn.set_result(None)


def namespace_of(path: str) -> str:
    """The namespace in a path of the API server; empty without one."""
    parts = path.split("/")
    if _NAMESPACES not in parts:
        return ""
    return "".join(parts[parts.index(_NAMESPACES) + 1 :][:1])
