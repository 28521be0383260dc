"""Connections of the HTTP client. Each carries one request at a time, and is kept for the next one.

Bytes without a request, and anything except exactly one response, end the connection.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import cast

from fleet_operator.clients.http_response import HttpError, HttpResponse, ResponseReader
from fleet_worker.http.byte_budget import ByteBudget

Address = tuple[str, int]
"""Host and port."""
Ended = Callable[[HttpResponse | Exception], None]
"""Called once with the response or the error."""


class StaleConnectionError(HttpError):
    """A kept connection ended before the first byte of the response."""


class Connection(asyncio.Protocol):
    """One connection: a request, its response, and then the next request.

    A request has no task and no future of its own. With thousands of requests, each would double the cost.
    """

    def __init__(
        self,
        address: Address,
        max_body_bytes: int,
        budget: ByteBudget[Connection],
        on_end: Callable[[Connection], None],
    ) -> None:
        self.address = address
        self._budget = budget
        self._counts = False
        """Whether the budget knows this connection."""
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._reader = ResponseReader(max_body_bytes)
        self._ended: Ended | None = None
        self._has_answered = False
        self._keeps = True

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._keeps and self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes, ended: Ended) -> None:
        """Send one request. `ended`: gets the response or an HttpError; a StaleConnectionError if a kept
        connection had ended.

        Errors: HttpError if the connection waits for a response or is not connected.
        """
        if self._transport is None or self._ended is not None:
            raise HttpError("the connection is in use")
        self._ended = ended
        self._transport.write(request)

    def drop(self) -> None:
        """End the connection at once, and forget its request. A late response can then never answer another
        request.
        """
        self._ended = None
        self._abort()

    def refuse(self, message: str) -> None:
        """End the connection, and its request with an error."""
        self._abort()
        self._end(HttpError(message))

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Take bytes that have arrived."""
        if self._ended is None:
            self._abort()  # there is no request
            return
        try:
            answer = self._reader.feed(data)
        except HttpError as error:
            self._abort()
            self._end(error)
            return
        if answer is None:
            self._counts = True
            for largest in self._budget.charge(self, self._reader.received_bytes):
                largest.refuse(
                    "its answer has not ended, and the unfinished answers of all workers have more "
                    f"than {self._budget.max_bytes} bytes"
                )
            return
        if self._counts:
            self._release()
        self._has_answered = True
        self._keeps = answer.headers.get("connection", "").lower() != "close"
        self._end(answer)

    def eof_received(self) -> bool:
        """Close the connection when the other side sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Note the end of the connection."""
        self._keeps = False
        self._on_end(self)
        if self._ended is not None:
            reason = str(exc) if exc is not None and str(exc) else "it ended the connection"
            stale = self._has_answered and not self._reader.received_bytes
            self._end(StaleConnectionError(reason) if stale else HttpError(reason))
        self._release()
        self._reader.clear()

    def _release(self) -> None:
        self._counts = False
        self._budget.release(self)

    def _abort(self) -> None:
        self._keeps = False
        self._reader.clear()
        self._release()
        if self._transport is not None:
            self._transport.abort()

    def _end(self, outcome: HttpResponse | HttpError) -> None:
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(outcome)


class KeptConnections:
    """Connections that wait for the next request to their address. Of more than `most`, the longest unused
    ones are closed, so that the number of open files stays bounded.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._all: OrderedDict[Connection, None] = OrderedDict()
        self._by_address: dict[Address, list[Connection]] = {}

    def close(self) -> None:
        """End all of them."""
        for connection in list(self._all):
            self.forget(connection)
            connection.drop()

    def take(self, address: Address) -> Connection | None:
        """An open connection to an address; None without one."""
        while kept := self._by_address.get(address):
            connection = kept[-1]
            self.forget(connection)
            if connection.is_open:
                return connection
        return None

    def keep(self, connection: Connection) -> None:
        """Keep a connection whose request has ended, if it can carry another one."""
        if not connection.is_open:
            connection.drop()
            return
        self._all[connection] = None
        self._by_address.setdefault(connection.address, []).append(connection)
        if len(self._all) > self._most:
            oldest = next(iter(self._all))
            self.forget(oldest)
            oldest.drop()

    def forget(self, connection: Connection) -> None:
        """Remove a connection that does not wait any more."""
        if connection not in self._all:
            return
        del self._all[connection]
        kept = self._by_address[connection.address]
        kept.remove(connection)
        if not kept:
            del self._by_address[connection.address]
