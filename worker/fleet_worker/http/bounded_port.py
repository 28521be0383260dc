"""The limits of connections and heads (`heads`) for a server of uvicorn, whose parser has none for headers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from fleet_worker.http.heads import Connection, Heads


def bound(config: Any, on_refused: Callable[[], None]) -> None:
    """Limit the connections that a server takes from now on.

    `config`: its `uvicorn.Config`. `on_refused`: see `Heads`.
    """
    if not config.loaded:
        config.load()
    heads, make = Heads(on_refused), config.http_protocol_class

    def connection(**given: Any) -> asyncio.Protocol:
        return _Connection(make(**given), heads)

    config.http_protocol_class = connection


class _Connection(Connection):
    """One connection. Of uvicorn's protocol it reads the request that came last, and whether it has ended."""

    inner: Any

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
        if self._transport is not None and self._transport.get_protocol() is not self:
            self.leave()  # a WebSocket, which the gate closes
        elif cycle is not before:
            self.begin(len(data) if next_begun else 0)
        elif next_begun or not was_body:
            self.count(len(data))
