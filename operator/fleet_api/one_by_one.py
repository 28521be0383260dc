"""Lets requests go on one by one, in turns by their sender, with other work of the event loop in between.

Else all requests of one moment, or all that wait for one read, run before the next look at the network. 256 of them
keep the request of another tenant waiting for half a second.
"""

from __future__ import annotations

import asyncio

from fleet_operator.turns import Turns


class OneByOne:
    """The requests that wait to go on."""

    def __init__(self) -> None:
        self._turns: Turns[tuple[str, asyncio.Future[None]]] = Turns(1)
        self._goes = False
        """One has gone on since the last look at the network."""

    async def turn(self, sender: str) -> None:
        """Wait until a request of this sender may go on."""
        loop = asyncio.get_running_loop()
        if not self._goes:
            self._goes = True
            loop.call_soon(self._next)
            return
        turn = loop.create_future()
        self._turns.add((sender,), (sender, turn))
        await turn

    def _next(self) -> None:
        while (waiting := self._turns.take()) is not None:
            sender, turn = waiting
            self._turns.leave((sender,))
            if not turn.done():
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._goes = False
