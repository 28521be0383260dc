"""Answers that need no credentials come at a rate, in turns by address: the event loop also streams the tokens.

The one whose last answer is longest ago comes first. So a kubelet passes all that wait for a shorter time than it
rests. The probes of an address have turns of their own. Where the network hides addresses behind that of the node
(SNAT), clients with a wrong key have the address of the kubelet.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import OrderedDict
from functools import partial

from fleet_worker.http.asgi import Scope
from fleet_worker.protocol import LIVE_PATH, READY_PATH

PER_SECOND = 200.0
"""Of one port. Each takes 0.1 to 0.4 ms of the event loop, with its connection."""
TURN = "rlfleet.turn"
"""Key of the scope of a request: waits for its turn."""
_REMEMBERED = 8192
"""Senders whose last answer is known. One that is forgotten comes before all others."""

_Sender = tuple[str, bool]
"""An address, and whether these are its probes."""


class Strangers:
    """The requests of one port that wait for such an answer."""

    def __init__(self) -> None:
        self._waiting: dict[_Sender, dict[asyncio.Future[None], None]] = {}
        """The next one of a sender comes first."""
        self._senders: list[tuple[int, int, _Sender]] = []
        """A heap: the number of the last answer, that of the request, and the sender. Each sender once."""
        self._answered: OrderedDict[_Sender, int] = OrderedDict()
        """The number of the last answer. The one that is longest ago comes first."""
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, address: str, path: str = "") -> asyncio.Future[None]:
        """The turn of a request. One that is cancelled, or gets an error, leaves its place to the next."""
        turn = asyncio.get_running_loop().create_future()
        sender = address, path in (LIVE_PATH, READY_PATH)
        if sender not in self._waiting:
            self._waiting[sender] = {}
            self._wait(sender)
        self._waiting[sender][turn] = None
        turn.add_done_callback(partial(self._leave, sender))
        if self._timer is None:
            self._next()
        return turn

    def _wait(self, sender: _Sender) -> None:
        self._number += 1
        heapq.heappush(self._senders, (self._answered.get(sender, 0), self._number, sender))

    def _next(self) -> None:
        self._timer = None
        while self._senders:
            _, _, sender = heapq.heappop(self._senders)
            if waiting := self._waiting.pop(sender):
                self._begin(sender, waiting)
                self._timer = asyncio.get_running_loop().call_later(1 / PER_SECOND, self._next)
                return

    def _begin(self, sender: _Sender, waiting: dict[asyncio.Future[None], None]) -> None:
        """Let the oldest request of a sender go."""
        self._number += 1
        self._answered[sender] = self._number
        self._answered.move_to_end(sender)
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        turn = next(iter(waiting))
        del waiting[turn]
        if waiting:
            self._waiting[sender] = waiting
            self._wait(sender)
        if not turn.done():
            turn.set_result(None)

    def _leave(self, sender: _Sender, turn: asyncio.Future[None]) -> None:
        # A sender without requests keeps its place among the others: one that comes and goes has no second one.
        if (waiting := self._waiting.get(sender)) is not None:
            waiting.pop(turn, None)


async def turn_of(scope: Scope) -> None:
    """Wait for the turn of a request without valid credentials. A server that is not ours gives none.

    Errors:
        ClientGoneError: the client closed the connection.
    """
    if (wait := scope.get(TURN)) is not None:
        await wait()
