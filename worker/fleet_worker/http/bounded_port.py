"""The limits of connections, heads (`heads`) and strangers for a server of uvicorn, which has none of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from fleet_worker.http.asgi import ClientGoneError, Receive, Scope, Send
from fleet_worker.http.heads import Connection, Heads
from fleet_worker.http.strangers import TURN, Strangers


def bound(config: Any, on_refused: Callable[[], None]) -> None:
    """Limit the connections that a server takes from now on.

    A worker has no route for WebSockets. Without their protocol, a request for one waits for its turn as any other.
    uvicorn warns of each request that is not HTTP, or is for another protocol, and only strangers send these.

    `config`: its `uvicorn.Config`. `on_refused`: see `Heads`.
    """
    if not config.loaded:
        config.load()
    config.ws_protocol_class = None
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    heads, strangers, make = Heads(on_refused), Strangers(), config.http_protocol_class

    def connection(**given: Any) -> asyncio.Protocol:
        return _Connection(make(**given), heads, strangers)

    config.http_protocol_class = connection


class _Connection(Connection):
    """One connection. Of uvicorn's protocol it reads the request that came last, and whether it has ended."""

    inner: Any

    def __init__(self, inner: Any, heads: Heads, strangers: Strangers) -> None:
        super().__init__(inner, heads)
        self._strangers = strangers
        self._turn: asyncio.Future[None] | None = None
        self._app = inner.app
        inner.app = self._serve

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        cycle = cast("Any", receive).__self__  # not `inner.cycle`, which is that of the last head
        scope[TURN] = partial(self._wait, cycle)
        try:
            await self._app(scope, receive, send)
        except ClientGoneError:
            cycle.disconnected = True  # else uvicorn logs that the application has not replied

    async def _wait(self, cycle: Any) -> None:
        if self.inner.transport.is_closing():
            raise ClientGoneError
        cycle.body = cycle.body[:0]  # nothing reads it, and 8,192 of them would fill the memory
        if cycle.more_body:
            self.inner.flow.pause_reading()
        address = self.inner.client[0] if self.inner.client else ""
        self._turn = self._strangers.turn(address, cycle.scope["path"])
        try:
            await self._turn
        finally:
            self._turn = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(ClientGoneError())

    @property
    def gives_way(self) -> bool:
        return self._turn is not None or super().gives_way

    @property
    def is_busy(self) -> bool:
        cycle = self.inner.cycle
        return cycle is not None and not cycle.response_complete

    @property
    def reads_body(self) -> bool:
        # uvicorn notes no end of a body that came after its reply. The scope is another one once the next head begins.
        cycle = self.inner.cycle
        return cycle is not None and cycle.more_body and self.inner.scope is cycle.scope

    def data_received(self, data: bytes) -> None:
        before, was_body = self.inner.cycle, self.reads_body
        # First: the bytes that complete a head may have its body, too, and its length must end no request.
        self.inner.data_received(data)
        cycle = self.inner.cycle
        next_begun = cycle is not None and self.inner.scope is not cycle.scope
        if cycle is not before:
            self.begin(len(data) if next_begun else 0)
        elif next_begun or not was_body:
            self.count(len(data))
