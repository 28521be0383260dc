"""A small HTTP/1.1 client for calls to thousands of workers. It supports one request at a time on a
connection and responses of known length, and nothing else.

A general client costs several times the processor time for each call
(docs/decisions/0023-a-client-for-thousands-of-workers.md). No redirect is followed.
"""

from __future__ import annotations

import asyncio

from fleet_operator.clients.http_connections import (
    Address,
    Connection,
    Ended,
    KeptConnections,
    StaleConnectionError,
)
from fleet_operator.clients.http_response import HttpError, HttpResponse
from fleet_worker.http.byte_budget import ByteBudget

MAX_BUFFERED_BYTES = 64 * 1024 * 1024
"""Limit for all unfinished answers together: an eighth of the chart's memory limit."""
SMALL_BYTES = 8 * 1024
"""An unfinished answer of up to this size does not count, and is never refused. A state has 2 KiB."""


class HttpClient:
    """Sends requests. Use it in one event loop.

    Several requests to one address go over several connections; `max_idle` of them are kept. Unfinished
    answers take at most `max_buffered_bytes` together.
    """

    def __init__(
        self,
        *,
        max_body_bytes: int,
        max_idle: int,
        connect_timeout_seconds: float,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._budget: ByteBudget[Connection] = ByteBudget(
            max_bytes=max_buffered_bytes, small_bytes=SMALL_BYTES
        )
        self._connect_timeout_seconds = connect_timeout_seconds
        self._kept = KeptConnections(max_idle)
        self._exchanges: set[Exchange] = set()

    def close(self) -> None:
        """End every connection. Waiting requests fail."""
        for exchange in list(self._exchanges):
            exchange.fail("the client was closed")
        self._kept.close()

    def send(
        self, address: Address, request: bytes, ended: Ended, *, timeout_seconds: float
    ) -> Exchange:
        """Send a request.

        A kept connection may have ended unnoticed. Then the request is sent once more, on a new connection:
        send only requests that may arrive twice.

        Args:
            address: Host and port.
            request: The bytes to send.
            ended: Gets the response, an HttpError, or an OSError without a connection. Not called for a
                cancelled exchange.
            timeout_seconds: Limit of the whole exchange.
        """
        exchange = Exchange(self, address, request, ended)
        self._exchanges.add(exchange)
        exchange.begin(timeout_seconds)
        return exchange

    # --- for exchanges ----------------------------------------------------------------------------

    def take(self, address: Address) -> Connection | None:
        """A kept connection to an address; None without one."""
        return self._kept.take(address)

    def keep(self, connection: Connection) -> None:
        """Keep a connection for another request, if it can carry one."""
        self._kept.keep(connection)

    def forget(self, exchange: Exchange) -> None:
        """Forget an exchange that has ended."""
        self._exchanges.discard(exchange)

    async def connect(self, address: Address) -> Connection:
        """Open a new connection.

        Errors: HttpError after the timeout; OSError.
        """
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_seconds):
                _, connection = await loop.create_connection(
                    lambda: Connection(
                        address, self._max_body_bytes, self._budget, self._kept.forget
                    ),
                    *address,
                )
        except TimeoutError:
            seconds = self._connect_timeout_seconds
            raise HttpError(f"there is no connection after {seconds:g} s") from None
        return connection


class Exchange:
    """One request and its outcome: a response, an error or a cancellation."""

    __slots__ = (
        "_address",
        "_client",
        "_connecting",
        "_connection",
        "_ended",
        "_request",
        "_timer",
    )

    def __init__(self, client: HttpClient, address: Address, request: bytes, ended: Ended) -> None:
        self._client = client
        self._address = address
        self._request = request
        self._ended: Ended | None = ended
        self._connection: Connection | None = None
        self._connecting: asyncio.Task[Connection] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, timeout_seconds: float) -> None:
        """Send the request."""
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(timeout_seconds, self._time_out, timeout_seconds)
        kept = self._client.take(self._address)
        if kept is not None:
            self._send_on(kept)
        else:
            self._connect()

    def give_up(self) -> None:
        """Cancel it, without an outcome."""
        self._ended = None
        self._leave()
        connection, self._connection = self._connection, None
        connecting, self._connecting = self._connecting, None
        if connection is not None:
            connection.drop()
        if connecting is not None:
            connecting.cancel()

    def fail(self, message: str) -> None:
        """End the exchange with an error."""
        ended = self._ended
        self.give_up()
        if ended is not None:
            ended(HttpError(message))

    def _send_on(self, connection: Connection) -> None:
        self._connection = connection
        connection.send(self._request, self._has_ended)

    def _connect(self) -> None:
        self._connecting = asyncio.create_task(self._client.connect(self._address))
        self._connecting.add_done_callback(self._has_connected)

    def _has_connected(self, connecting: asyncio.Task[Connection]) -> None:
        self._connecting = None
        if connecting.cancelled():
            return
        error = connecting.exception()
        if error is not None:
            self._end(error if isinstance(error, Exception) else HttpError(type(error).__name__))
        elif self._ended is None:
            connecting.result().drop()  # cancelled at this moment
        else:
            self._send_on(connecting.result())

    def _has_ended(self, outcome: HttpResponse | Exception) -> None:
        """Called by the connection."""
        connection, self._connection = self._connection, None
        if isinstance(outcome, StaleConnectionError):
            self._connect()
            return
        if connection is not None:
            self._client.keep(connection)
        self._end(outcome)

    def _end(self, outcome: HttpResponse | Exception) -> None:
        ended, self._ended = self._ended, None
        self._leave()
        if ended is not None:
            ended(outcome)

    def _time_out(self, after_seconds: float) -> None:
        self.fail(f"there is no answer after {after_seconds:g} s")

    def _leave(self) -> None:
        self._client.forget(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
