"""Answers that need no credentials come at a rate, in turns by address: the event loop also streams the tokens.

The probes of an address have turns of their own. Where the network hides addresses behind that of the node (SNAT),
clients with a wrong key have the address of the kubelet.
"""

from __future__ import annotations

import asyncio
from functools import partial

from fleet_worker.http.asgi import Scope
from fleet_worker.protocol import LIVE_PATH, READY_PATH

PER_SECOND = 100.0
"""Of one port. With 2,000 connections of a stranger the process could do nothing else."""
OWN_SECONDS = 0.5
"""A sender has one answer in this time besides. 500 pods that ask would else keep the kubelet's probe waiting for
5 s, and the kubelet would restart the worker."""
TURN = "rlfleet.turn"
"""Key of the scope of a request: waits for its turn."""

_Sender = tuple[str, bool]
"""An address, and whether these are its probes."""


class Strangers:
    """The requests of one port that wait for such an answer."""

    def __init__(self) -> None:
        self._waiting: dict[_Sender, dict[asyncio.Future[None], None]] = {}
        """The next one comes first."""
        self._owning: set[_Sender] = set()
        """Those that have had an answer of their own within `OWN_SECONDS`."""
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, address: str, path: str = "") -> asyncio.Future[None]:
        """The turn of a request. One that is cancelled, or gets an error, leaves its place to the next."""
        turn = asyncio.get_running_loop().create_future()
        sender = address, path in (LIVE_PATH, READY_PATH)
        self._waiting.setdefault(sender, {})[turn] = None
        turn.add_done_callback(partial(self._leave, sender))
        if sender not in self._owning:
            self._own(sender)
        elif self._timer is None:
            self._next()
        return turn

    def _own(self, sender: _Sender) -> None:
        self._owning.discard(sender)
        if sender in self._waiting:
            self._owning.add(sender)
            asyncio.get_running_loop().call_later(OWN_SECONDS, self._own, sender)
            self._begin(sender)

    def _next(self) -> None:
        self._timer = None
        if self._waiting:
            self._begin(next(iter(self._waiting)))
            self._timer = asyncio.get_running_loop().call_later(1 / PER_SECOND, self._next)

    def _begin(self, sender: _Sender) -> None:
        """Let the oldest request of a sender go. The sender comes last then."""
        waiting = self._waiting.pop(sender)
        turn = next(iter(waiting))
        del waiting[turn]
        if waiting:
            self._waiting[sender] = waiting
        if not turn.done():
            turn.set_result(None)

    def _leave(self, sender: _Sender, turn: asyncio.Future[None]) -> None:
        if (waiting := self._waiting.get(sender)) is not None:
            waiting.pop(turn, None)
            if not waiting:
                del self._waiting[sender]


async def turn_of(scope: Scope) -> None:
    """Wait for the turn of a request without valid credentials. A server that is not ours gives none.

    Errors:
        ClientGoneError: the client closed the connection.
    """
    if (wait := scope.get(TURN)) is not None:
        await wait()
