"""Answers that need no credentials come at a rate, in turns by address: the event loop also streams the tokens."""

from __future__ import annotations

import asyncio
from functools import partial

from fleet_worker.http.asgi import Scope

PER_SECOND = 100.0
"""Of one port. With 2,000 connections of a stranger the process could do nothing else."""
OWN_SECONDS = 0.5
"""An address has one answer in this time besides. 500 pods that ask would else keep the kubelet's probe waiting for
5 s, and the kubelet would restart the worker."""
TURN = "rlfleet.turn"
"""Key of the scope of a request: waits for its turn."""


class Strangers:
    """The requests of one port that wait for such an answer."""

    def __init__(self) -> None:
        self._waiting: dict[str, dict[asyncio.Future[None], None]] = {}
        """By address. The next one comes first."""
        self._owning: set[str] = set()
        """The addresses that have had an answer of their own within `OWN_SECONDS`."""
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, address: str) -> asyncio.Future[None]:
        """The turn of a request. One that is cancelled, or gets an error, leaves its place to the next."""
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, {})[turn] = None
        turn.add_done_callback(partial(self._leave, address))
        if address not in self._owning:
            self._own(address)
        elif self._timer is None:
            self._next()
        return turn

    def _own(self, address: str) -> None:
        self._owning.discard(address)
        if address in self._waiting:
            self._owning.add(address)
            asyncio.get_running_loop().call_later(OWN_SECONDS, self._own, address)
            self._begin(address)

    def _next(self) -> None:
        self._timer = None
        if self._waiting:
            self._begin(next(iter(self._waiting)))
            self._timer = asyncio.get_running_loop().call_later(1 / PER_SECOND, self._next)

    def _begin(self, address: str) -> None:
        """Let the oldest request of an address go. The address comes last then."""
        waiting = self._waiting.pop(address)
        turn = next(iter(waiting))
        del waiting[turn]
        if waiting:
            self._waiting[address] = waiting
        if not turn.done():
            turn.set_result(None)

    def _leave(self, address: str, turn: asyncio.Future[None]) -> None:
        if (waiting := self._waiting.get(address)) is not None:
            waiting.pop(turn, None)
            if not waiting:
                del self._waiting[address]


async def turn_of(scope: Scope) -> None:
    """Wait for the turn of a request without valid credentials. A server that is not ours gives none.

    Errors:
        ClientGoneError: the client closed the connection.
    """
    if (wait := scope.get(TURN)) is not None:
        await wait()
