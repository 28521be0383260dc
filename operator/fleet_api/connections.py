"""Connections to the routers and Services of fleets.

A Service chooses a worker for each connection. Under load a kept connection would never end, and a worker
that is new or comes back would get no request. So kept connections are exchanged from time to time.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler

CONNECT_SECONDS = 5.0
KEPT_SECONDS = 30.0
"""How long requests share connections. The next request opens new ones."""

READ_BYTES = 8 * 1024
"""Size from which a reply is not read further until its client has read it. Half a MiB of each reply was in
memory with the defaults of aiohttp and Linux."""
RECEIVED_BYTES = 16 * 1024
"""The part of a body or a reply that Linux holds at most, and about the most that is read at once."""
WRITTEN_BYTES = 16 * 1024
"""A body or a reply waits for its reader once this part of it is written and not sent."""


MAX_HEADERS = 32
MAX_HEADER_BYTES = 1024
"""Of one header, and of the status line. A worker's own headers have at most 100 bytes."""
MAX_MESSAGES = 8
"""An answer, and interim ones before it. vLLM and its router send none of these."""


def socket_of(address: Any) -> socket.socket:
    """A socket for a connection to a worker, which holds little in both directions. `address`: of getaddrinfo."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.settimeout(0)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, WRITTEN_BYTES)
    return made


_OTHER_PROTOCOL = 101


class _Bounded(ResponseHandler):
    """A connection that ends with messages that no request waits for.

    aiohttp keeps any number of them on a connection that is idle, so that the next request gets an answer of another
    one. It reads any number of interim ones (1xx) before an answer. Source: aiohttp 3.14,
    `client_proto.ResponseHandler`.
    """

    _left = 0

    def set_response_params(self, **params: Any) -> None:
        """Called for each request."""
        self._left = MAX_MESSAGES
        super().set_response_params(**params)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Called for each message."""
        self._left -= 1
        # aiohttp takes 101 as the answer, and keeps the connection. No request asks for another protocol.
        if self._left >= 0 and data[0].code != _OTHER_PROTOCOL:
            if data[0].code // 100 != 1:  # the answer
                self._left = 0
            super().feed_data(data, size)
        elif self.transport is not None:
            self.transport.abort()


class _Connector(aiohttp.TCPConnector):
    """Its connections are bounded."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        loop = asyncio.get_running_loop()
        self._factory = partial(_Bounded, loop=loop)  # type: ignore[assignment]  # it is invariant


def untrusted_session(
    *, read_bytes: int = 2**16, seconds: float | None = None, **connector: Any
) -> aiohttp.ClientSession:
    """Sends requests to what tenants run. `seconds`: limit of a connection's begin. `connector`: options of aiohttp's."""
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, **connector),
        read_bufsize=read_bytes,
        # With the defaults of aiohttp, 150 heads took 290 MiB.
        max_line_size=MAX_HEADER_BYTES,
        max_field_size=MAX_HEADER_BYTES,
        max_headers=MAX_HEADERS,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=seconds),
        auto_decompress=False,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _session(resolver: AbstractResolver, *, force_close: bool) -> aiohttp.ClientSession:
    # A generation may take any time, and `Slots` limits their number.
    return untrusted_session(
        read_bytes=READ_BYTES,
        seconds=CONNECT_SECONDS,
        force_close=force_close,
        resolver=resolver,
        use_dns_cache=False,
        socket_factory=socket_of,
    )


@dataclass(eq=False, slots=True)
class _Kept:
    """Shared connections. `users`: requests whose reply has not ended. `since`: when the first one began."""

    session: aiohttp.ClientSession
    since: float = field(default_factory=time.monotonic)
    users: int = 0


class Connections:
    """The connections of the proxy: shared ones, and new ones for requests that are sent again.

    `resolver`: finds the address of each host, for each new connection.
    """

    def __init__(self, resolver: AbstractResolver) -> None:
        self._resolver = resolver
        self._kept: _Kept | None = None
        self._old: set[_Kept] = set()
        """Exchanged connections with replies that have not ended."""
        self._new: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        kept = [*self._old, self._kept] if self._kept is not None else []
        for session in (*(one.session for one in kept), self._new):
            if session is not None:
                await session.close()

    @property
    def new(self) -> aiohttp.ClientSession:
        """A session in which each request opens a new connection."""
        if self._new is None:
            self._new = _session(self._resolver, force_close=True)
        return self._new

    @asynccontextmanager
    async def kept(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A session whose connections requests share. The block lasts until the reply has ended."""
        before, used = None, self._kept
        if used is None or time.monotonic() - used.since > KEPT_SECONDS:
            before, used = used, _Kept(_session(self._resolver, force_close=False))
            self._kept = used
            if before is not None:
                self._old.add(before)
        used.users += 1
        try:
            await self._end_unused(before)
            yield used.session
        finally:
            used.users -= 1
            await self._end_unused(used)

    async def _end_unused(self, one: _Kept | None) -> None:
        if one is not None and one in self._old and not one.users:
            self._old.remove(one)
            await one.session.close()
