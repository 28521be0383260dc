"""Answers that need no credentials come at a rate, in turns by address: the event loop also streams the tokens.

Of the senders that had an answer, the one whose last answer is longest ago comes first. So a kubelet passes all that
wait for a shorter time than it rests. One that has rested for a second comes before those without an answer, since a
client may have any number of addresses. These have a tenth of the answers at least, and the newest comes first: of
more than can be answered, some have their answer in time.

The probes of an address have turns of their own. Where the network hides addresses behind that of the node (SNAT),
clients with a wrong key have the address of the kubelet.
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
"""Senders whose last answer is known. One that is forgotten is new again."""
_ONE_NEW_IN = 10
"""One of this number of answers is for a new sender, if any waits. Else those that never stop would keep the kubelet of a
worker that has just started waiting."""
_LATE_SECONDS = 0.05
"""Answers of this time come at once where a busy loop ran none. With more, they would keep it busy."""

_Sender = tuple[str, bool]
"""An address, and whether these are its probes."""


class Strangers:
    """The requests of one port that wait for such an answer."""

    def __init__(self) -> None:
        self._waiting: dict[_Sender, dict[asyncio.Future[None], None]] = {}
        """The next one of a sender comes first."""
        self._known: list[tuple[int, _Sender]] = []
        """A heap of senders that had an answer: its number, and the sender. Each sender once."""
        self._new: dict[_Sender, None] = {}
        """Those that had none. The newest comes last."""
        self._answered: OrderedDict[_Sender, int] = OrderedDict()
        """The number of the last answer. The one that is longest ago comes first."""
        self._answers = 0
        self._due = 0.0
        """When the next answer may begin."""
        self._timer: asyncio.TimerHandle | None = None

    def turn(self, address: str, path: str = "") -> asyncio.Future[None]:
        """The turn of a request. One that is cancelled, or gets an error, leaves its place to the next."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        sender = address, path in (LIVE_PATH, READY_PATH)
        if sender not in self._waiting:
            self._waiting[sender] = {}
            self._wait(sender)
        self._waiting[sender][turn] = None
        turn.add_done_callback(partial(self._leave, sender))
        if self._timer is None:
            self._due = max(self._due, loop.time())
            self._next()
        return turn

    def _wait(self, sender: _Sender) -> None:
        if (answered := self._answered.get(sender)) is None:
            self._new[sender] = None
        else:
            heapq.heappush(self._known, (answered, sender))

    def _next(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer, now = None, loop.time()
        # A busy loop runs timers late, and several are due then.
        self._due = max(self._due, now - _LATE_SECONDS)
        while (sender := self._first()) is not None:
            self._begin(sender)
            self._due += 1 / PER_SECOND
            if self._due > now:
                self._timer = loop.call_at(self._due, self._next)
                return

    def _first(self) -> _Sender | None:
        """The sender whose turn it is."""
        while self._known and not self._waiting[self._known[0][1]]:
            del self._waiting[heapq.heappop(self._known)[1]]
        if self._new and (self._answers % _ONE_NEW_IN == 0 or not self._has_rested()):
            return self._new.popitem()[0]
        return heapq.heappop(self._known)[1] if self._known else None

    def _has_rested(self) -> bool:
        """Whether a known sender waits that had no answer for a second of answers."""
        return bool(self._known) and self._answers - self._known[0][0] >= PER_SECOND

    def _begin(self, sender: _Sender) -> None:
        """Let the oldest request of a sender go."""
        self._answers += 1
        self._answered[sender] = self._answers
        self._answered.move_to_end(sender)
        if len(self._answered) > _REMEMBERED:
            self._answered.popitem(last=False)
        waiting = self._waiting.pop(sender)
        turn = next(iter(waiting))
        del waiting[turn]
        if waiting:
            self._waiting[sender] = waiting
            self._wait(sender)
        if not turn.done():
            turn.set_result(None)

    def _leave(self, sender: _Sender, turn: asyncio.Future[None]) -> None:
        if (waiting := self._waiting.get(sender)) is None:
            return
        waiting.pop(turn, None)
        # A known sender without requests keeps its place: one that comes and goes has no second one. It is soon the
        # first. New ones might never be.
        if not waiting and sender in self._new:
            del self._new[sender], self._waiting[sender]


async def turn_of(scope: Scope) -> None:
    """Wait for the turn of a request without valid credentials. A server that is not ours gives none.

    Errors:
        ClientGoneError: the client closed the connection.
    """
    if (wait := scope.get(TURN)) is not None:
        await wait()
