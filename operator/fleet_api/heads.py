"""The limits of connections and heads (`fleet_worker.http.heads`) for a server of aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import StreamReader, web

from fleet_api.calls import AUDITED
from fleet_api.whole_body import READ_BYTES
from fleet_operator.own_ports.parse_errors import forget_frames, waiting_messages
from fleet_worker.http import heads

HEAD_BYTES = 16 * 1024
"""A head that has come whole has no more, since a token has 8 KiB. Bytes beyond it belong to the next one."""


class Heads:
    """The connections of one application. Use `connection` for each, and put `middleware` before all others.

    `on_refused`: see `heads.Heads`.
    """

    def __init__(self, on_refused: Callable[[], None]) -> None:
        self._heads = heads.Heads(on_refused)
        self._open: dict[asyncio.BaseProtocol, _Connection] = {}

    def connection(self, inner: asyncio.Protocol) -> asyncio.Protocol:
        """The protocol of a connection. `inner`: that of aiohttp."""
        return _Connection(inner, self._heads, self._open)

    @web.middleware
    async def middleware(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Note that the head of a request has come."""
        connection = self._open.get(request.protocol)
        if connection is None:
            return await handler(request)
        connection.take(request)
        try:
            return await handler(request)
        finally:
            connection.request = None


class _Connection(heads.Connection):
    """One connection. `request`: the one that runs."""

    def __init__(
        self,
        inner: asyncio.Protocol,
        limits: heads.Heads,
        opened: dict[asyncio.BaseProtocol, _Connection],
    ) -> None:
        super().__init__(inner, limits)
        self.request: web.Request | None = None
        self._opened = opened
        self._body: StreamReader | None = None
        """Of the last request. aiohttp reads the rest of one that is refused, so that its client reads why."""

    @property
    def is_busy(self) -> bool:
        return self.request is not None

    @property
    def gives_way(self) -> bool:
        if self.request is None:
            return True
        audited = self.request.get(AUDITED)
        is_open = "namespace" not in self.request.match_info
        return audited is not None and (is_open or audited.reason != "")

    @property
    def reads_body(self) -> bool:
        return self._body is not None and not self._body.is_eof()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._opened[self.inner] = self
        if hasattr(
            transport, "set_read_buffer_limits"
        ):  # of TLS, which holds as much besides the socket
            transport.set_read_buffer_limits(high=READ_BYTES)
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        was_body = self.reads_body
        # First: the bytes that complete a head may have its body, too, and its length must end no request.
        self.inner.data_received(data)
        forget_frames(self.inner)
        if was_body:
            return
        if self.is_busy or not waiting_messages(self.inner):
            self.count(len(data))
        else:
            self._bytes += len(data)  # `take` finds those of the next head in a moment

    def take(self, request: web.Request) -> None:
        """Note that the head of a request has come whole. The next one may have begun in the same bytes."""
        self.request, self._body = request, request.content
        rest = self._bytes - _body_bytes(request) if request.content.is_eof() else 0
        self.begin(rest if rest > HEAD_BYTES else 0)

    def leave(self) -> None:
        self._opened.pop(self.inner, None)
        super().leave()


def _body_bytes(request: web.Request) -> int:
    """The size of a body that has come whole; 0 if it is compressed and has no length."""
    if request.content_length is not None:
        return request.content_length
    return 0 if "Content-Encoding" in request.headers else request.content.total_bytes
