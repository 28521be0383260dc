"""Connections, and the heads of requests that have not come whole: bounded, since they have no caller yet.

aiohttp keeps up to 128 headers of 8 KiB for as long as their client likes. So 200 connections of a stranger, without
an account, would fill the memory of the process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import StreamReader, web

from fleet_operator.byte_budget import ByteBudget
from fleet_operator.own_ports.passing import Passing

MAX_BYTES = 8 * 1024 * 1024
"""All of them together. Beyond it the longest ones end."""
SMALL_BYTES = 4 * 1024
"""One of up to this size does not count: an account's token has 1 KiB."""
HEAD_BYTES = 16 * 1024
"""A head that has come whole has no more, since a token has 8 KiB. Bytes beyond it belong to the next one."""
MAX_CONNECTIONS = 8192
"""Beyond it the oldest one without a request ends. Each has 5 KiB, and more requests than half of them cannot run."""
SECONDS = 10.0
"""From the connection, or the first byte of a later request on it. Then the connection ends."""


class Heads:
    """The connections of one application. Use `connection` for each, and put `middleware` before all others."""

    def __init__(self) -> None:
        self._budget: ByteBudget[_Connection] = ByteBudget(
            max_bytes=MAX_BYTES, small_bytes=SMALL_BYTES
        )
        self._open: dict[asyncio.BaseProtocol, _Connection] = {}

    def connection(self, inner: asyncio.Protocol) -> asyncio.Protocol:
        """The protocol of a connection. `inner`: that of aiohttp."""
        return _Connection(inner, self)

    def note(self, connection: _Connection) -> None:
        """Note a connection that is made, after the handshake of TLS. asyncio reports the end of no other one."""
        self._open[connection.inner] = connection
        if len(self._open) > MAX_CONNECTIONS:
            idle = next(each for each in self._open.values() if each.request is None)
            self.forget(idle)
            idle.abort()

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that the head of a request has come."""
        connection = self._open.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.begin(request)
        try:
            return await handler(request)
        finally:
            connection.request = None

    def charge(self, connection: _Connection, size_bytes: int) -> None:
        """Note the bytes of a head, and end the longest ones beyond the limit."""
        for each in self._budget.charge(connection, size_bytes):
            each.abort()

    def forget(self, connection: _Connection) -> None:
        """Note that a connection has ended."""
        self._budget.release(connection)
        self._open.pop(connection.inner, None)


class _Connection(Passing):
    """One connection. `request`: the one that runs."""

    def __init__(self, inner: asyncio.Protocol, heads: Heads) -> None:
        super().__init__(inner)
        self.request: web.Request | None = None
        self._heads = heads
        self._body: StreamReader | None = None
        """Of the last request. aiohttp reads the rest of one that is refused, so that its client reads why."""
        self._rest = 0
        """Bytes of the next head that came together with the last one."""
        self._bytes = 0
        """Bytes that have come since then, and are of no body."""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._limit_time()
        super().connection_made(transport)
        self._heads.note(self)

    def data_received(self, data: bytes) -> None:
        if self._body is None or self._body.is_eof():
            if self.request is None:
                self._limit_time()
            self._bytes += len(data)
            self._heads.charge(self, self._rest + self._bytes)
        super().data_received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_time()
        self._heads.forget(self)
        super().connection_lost(exc)

    def begin(self, request: web.Request) -> None:
        """Note that the head of a request has come whole. The next one may have begun in the same bytes."""
        self.request, self._body = request, request.content
        self._end_time()
        rest = self._bytes - _body_bytes(request) if request.content.is_eof() else 0
        self._rest, self._bytes = rest if rest > HEAD_BYTES else 0, 0
        self._heads.charge(self, self._rest)

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self.abort)

    def _end_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _body_bytes(request: web.Request) -> int:
    """The size of a body that has come whole; 0 if it is compressed and has no length."""
    if request.content_length is not None:
        return request.content_length
    return 0 if "Content-Encoding" in request.headers else request.content.total_bytes
