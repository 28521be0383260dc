"""Connections, and the heads of requests that have not come whole: bounded, since they have no caller yet.

A server keeps the headers of a request for as long as their client likes: aiohttp up to 128 of 8 KiB, uvicorn any
number. So 200 connections of a stranger, without an account, would fill the memory of the process.
"""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Callable

from fleet_worker.http.byte_budget import ByteBudget
from fleet_worker.http.passing import Passing
from fleet_worker.logs import fields

_LOG = logging.getLogger(__name__)

MAX_BYTES = 8 * 1024 * 1024
"""All of them together. Beyond it the longest ones end."""
SMALL_BYTES = 4 * 1024
"""One of up to this size does not count: an account's token has 1 KiB."""
MAX_CONNECTIONS = 8192
"""Beyond it the oldest one without a request ends. Each has 5 KiB."""
SECONDS = 10.0
"""From the connection, or the first byte of a later request on it. Then the connection ends."""
_READ_SECONDS = 0.1
_LOG_SECONDS = 10.0
"""At most one line on refused connections is logged within it: strangers may try as often as they like."""


class Heads:
    """The connections of one port. `on_refused`: called for each new one that ends since all others have a request."""

    def __init__(self, on_refused: Callable[[], None]) -> None:
        self._on_refused = on_refused
        self._budget: ByteBudget[Connection] = ByteBudget(
            max_bytes=MAX_BYTES, small_bytes=SMALL_BYTES
        )
        self._open: dict[Connection, None] = {}
        """The oldest come first."""
        self._log_at = 0.0

    def note(self, connection: Connection) -> None:
        """Note a connection that is made, after the handshake of TLS. asyncio reports the end of no other one."""
        self._open[connection] = None
        if len(self._open) > MAX_CONNECTIONS:
            # The new one is idle, so that there is one.
            idle = next(each for each in self._open if each.gives_way)
            self.forget(idle)
            idle.abort()
            if idle is connection:
                self._on_refused()
                self._log_refused(asyncio.get_running_loop().time())

    def _log_refused(self, now: float) -> None:
        if now < self._log_at:
            return
        self._log_at = now + _LOG_SECONDS
        _LOG.warning(
            "a new connection was ended at once: all %d of this port have a request. Spread the clients over more "
            "workers or replicas",
            MAX_CONNECTIONS,
            extra=fields("connection_refused"),
        )

    def charge(self, connection: Connection, size_bytes: int) -> None:
        """Note the bytes of a head, and end the longest ones beyond the limit."""
        for each in self._budget.charge(connection, size_bytes):
            each.abort()

    def forget(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        self._budget.release(connection)
        self._open.pop(connection, None)


class Connection(Passing):
    """One connection, and the protocol of a server. A subclass notes the heads that have come whole."""

    def __init__(self, inner: asyncio.Protocol, heads: Heads) -> None:
        super().__init__(inner)
        self._heads = heads
        self._rest = 0
        """Bytes of the next head that came together with the last one."""
        self._bytes = 0
        """Bytes that have come since then, and are of no body."""
        self._timer: asyncio.TimerHandle | None = None

    @property
    @abstractmethod
    def is_busy(self) -> bool:
        """Whether a request runs."""

    @property
    def gives_way(self) -> bool:
        """Whether it may end for a new connection."""
        return not self.is_busy

    @property
    @abstractmethod
    def reads_body(self) -> bool:
        """Whether the next bytes are of the body of a request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._limit_time()
        super().connection_made(transport)
        self._heads.note(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.leave()
        super().connection_lost(exc)

    def count(self, size_bytes: int) -> None:
        """Note bytes that are of no body."""
        if not self.is_busy:
            self._limit_time()
        self._bytes += size_bytes
        self._heads.charge(self, self._rest + self._bytes)

    def begin(self, rest_bytes: int) -> None:
        """Note that a head has come whole. `rest_bytes`: of the next one, which came with it."""
        self._end_time()
        self._rest, self._bytes = rest_bytes, 0
        self._heads.charge(self, rest_bytes)

    def leave(self) -> None:
        """Note that this connection needs no limits any more."""
        self._end_time()
        self._heads.forget(self)

    def _limit_time(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._read_once_more)

    def _read_once_more(self) -> None:
        """uvloop runs timers before it reads. Bytes that came while the loop did other work are read first."""
        later = asyncio.get_running_loop().call_later
        self._timer = later(_READ_SECONDS, self.abort)

    def _end_time(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
