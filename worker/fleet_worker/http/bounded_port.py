"""The limits of connections and heads (`heads`) for a server of uvicorn, whose parser has none for headers."""

from __future__ import annotations

import asyncio
from typing import Any

from fleet_worker.http.heads import Connection, Heads


def bound(config: Any) -> None:
    """Limit the connections that a server takes from now on. `config`: its `uvicorn.Config`."""
    if not config.loaded:
        config.load()
    heads, make = Heads(), config.http_protocol_class

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
        cycle = self.inner.cycle
        return cycle is not None and cycle.more_body

    def data_received(self, data: bytes) -> None:
        before = self.inner.cycle
        super().data_received(data)
        if self._transport is not None and self._transport.get_protocol() is not self:
            self.leave()  # a WebSocket, which the gate closes
        elif (cycle := self.inner.cycle) is not before:
            # The scope of the protocol is another one as soon as the next head has begun.
            self.begin(0 if self.inner.scope is cycle.scope else len(data))
