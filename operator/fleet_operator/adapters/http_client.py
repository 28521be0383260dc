"""A small HTTP/1.1 client for calls to thousands of workers: one request at a time on a connection,
answers of known length, nothing else.

A general client costs two to three times the processor time for each call
(docs/decisions/0023-a-client-for-thousands-of-workers.md).

Answers are untrusted. What is not exactly one answer to the one request of a connection ends that
connection: no redirect, no encoding, no pieces, no interim answer, and nothing before or behind it.
Source: RFC 9112, "HTTP/1.1".
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

Address = tuple[str, int]
"""Host and port."""

MAX_HEAD_BYTES = 8 * 1024
"""Of the status line and all headers."""
MAX_HEADERS = 32
MAX_HEADER_BYTES = 1024
"""Of one header, and of the status line."""
_STATUS = re.compile(rb"HTTP/1\.1 ([2-5][0-9][0-9])(?: [^\x00-\x08\x0a-\x1f\x7f]*)?")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([^\x00-\x08\x0a-\x1f\x7f]*)")
_LENGTH = re.compile(r"[0-9]{1,15}")


class HttpError(Exception):
    """There is no answer that can be used. The text says why, in words for a condition."""


class StaleConnectionError(HttpError):
    """A connection that was kept has ended before any byte of the answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer. `headers`: names in lower case; of several of one name the last one."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One connection: a request, its answer, and then the next request."""

    def __init__(self, max_body_bytes: int, on_end: Callable[[Connection], None]) -> None:
        self._max_body_bytes = max_body_bytes
        self._on_end = on_end
        self._transport: asyncio.Transport | None = None
        self._waiting: asyncio.Future[Answer] | None = None
        self._received = bytearray()
        self._head: tuple[int, dict[str, str], int] | None = None
        self._keeps = True
        self.answered = 0

    @property
    def is_open(self) -> bool:
        """Whether another request can be sent."""
        return self._transport is not None and not self._transport.is_closing() and self._keeps

    async def ask(self, request: bytes) -> Answer:
        """Send one request and wait for its answer.

        Errors: HttpError; StaleConnectionError if the connection was kept and had ended.
        """
        transport = self._transport
        if transport is None or self._waiting is not None:
            raise HttpError("the connection is in use")
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            transport.write(request)
            return await self._waiting
        except BaseException:
            self.abort()  # an answer that comes later must not be taken for another request's
            raise
        finally:
            self._waiting = None

    def abort(self) -> None:
        """End it at once."""
        self._keeps = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        waiting = self._waiting
        if waiting is None or waiting.done():
            self.abort()  # nothing was asked
            return
        self._received += data
        try:
            answer = self._next_answer()
        except HttpError as error:
            waiting.set_exception(error)
            self.abort()
            return
        if answer is not None:
            self.answered += 1
            waiting.set_result(answer)

    def eof_received(self) -> bool:
        """The other side sends no more."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has ended."""
        self._keeps = False
        if self._waiting is not None and not self._waiting.done():
            told = str(exc) if exc is not None and str(exc) else "it ended the connection"
            stale = self.answered > 0 and not self._received and self._head is None
            error = StaleConnectionError(told) if stale else HttpError(told)
            self._waiting.set_exception(error)
        self._on_end(self)

    # --- the answer -------------------------------------------------------------------------------

    def _next_answer(self) -> Answer | None:
        """The answer, if all of it has come."""
        if self._head is None:
            end = self._received.find(b"\r\n\r\n")
            if end < 0:
                _check_head_bytes(len(self._received))
                return None
            _check_head_bytes(end)
            self._head = _head_of(bytes(self._received[:end]), self._max_body_bytes)
            del self._received[: end + 4]
        status, headers, length = self._head
        if len(self._received) < length:
            return None
        if len(self._received) > length:
            raise HttpError("more bytes came than its answer has")
        body = bytes(self._received)
        self._received, self._head = bytearray(), None
        self._keeps = headers.get("connection", "").lower() != "close"
        return Answer(status, headers, body)


class HttpClient:
    """Connections by address, kept for the next request; used in one event loop.

    Several requests to one address go over several connections. Of those that wait for nothing the
    longest unused ones are closed beyond `max_idle`, so that open files stay bounded.
    """

    def __init__(
        self, *, max_body_bytes: int, max_idle: int, connect_timeout_seconds: float
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._max_idle = max_idle
        self._connect_timeout_seconds = connect_timeout_seconds
        self._idle: OrderedDict[Connection, Address] = OrderedDict()
        self._by_address: dict[Address, list[Connection]] = {}
        self._busy: set[Connection] = set()

    def close(self) -> None:
        """End every connection; requests that wait fail."""
        for connection in [*self._idle, *self._busy]:
            connection.abort()

    async def ask(self, address: Address, request: bytes) -> Answer:
        """Send a request and wait for its answer; the caller bounds the time.

        A connection that was kept may have ended meanwhile without a word. Then the request is sent
        once more, on a new one: send only requests that may arrive twice.

        Errors: HttpError; OSError if there is no connection.
        """
        kept = self._take(address)
        if kept is not None:
            try:
                return await self._ask_on(kept, address, request)
            except StaleConnectionError:
                pass
        return await self._ask_on(await self._connect(address), address, request)

    async def _ask_on(self, connection: Connection, address: Address, request: bytes) -> Answer:
        self._busy.add(connection)
        try:
            answer = await connection.ask(request)
        finally:
            self._busy.discard(connection)
        self._keep(connection, address)
        return answer

    async def _connect(self, address: Address) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_timeout_seconds):
            _, connection = await loop.create_connection(
                lambda: Connection(self._max_body_bytes, self._forget), *address
            )
        return connection

    def _take(self, address: Address) -> Connection | None:
        kept = self._by_address.get(address)
        while kept:
            connection = kept[-1]
            self._forget(connection)
            if connection.is_open:
                return connection
        return None

    def _keep(self, connection: Connection, address: Address) -> None:
        if not connection.is_open:
            connection.abort()
            return
        self._idle[connection] = address
        self._by_address.setdefault(address, []).append(connection)
        if len(self._idle) > self._max_idle:
            oldest = next(iter(self._idle))
            self._forget(oldest)
            oldest.abort()

    def _forget(self, connection: Connection) -> None:
        """It is not idle any more."""
        address = self._idle.pop(connection, None)
        if address is None:
            return
        kept = self._by_address[address]
        kept.remove(connection)
        if not kept:
            del self._by_address[address]


def _check_head_bytes(count: int) -> None:
    if count > MAX_HEAD_BYTES:
        raise HttpError(f"the headers of its answer have more than {MAX_HEAD_BYTES} bytes")


def _head_of(head: bytes, max_body_bytes: int) -> tuple[int, dict[str, str], int]:
    """Status, headers and length of the body."""
    first, *lines = head.split(b"\r\n")
    if len(lines) > MAX_HEADERS or any(len(line) > MAX_HEADER_BYTES for line in (first, *lines)):
        raise HttpError("its answer has too many or too long headers")
    status = _STATUS.fullmatch(first)
    if status is None:
        raise HttpError("what answers does not speak HTTP/1.1")
    headers: dict[str, str] = {}
    for line in lines:
        found = _HEADER.fullmatch(line)
        if found is None:
            raise HttpError("a header of its answer is malformed")
        name = found[1].decode("ascii").lower()
        if name == "content-length" and name in headers:
            raise HttpError("its answer has two lengths")
        headers[name] = found[2].decode("latin-1").rstrip(" \t")
    return int(status[1]), headers, _length_of(headers, max_body_bytes)


def _length_of(headers: Mapping[str, str], max_body_bytes: int) -> int:
    if "content-encoding" in headers:
        raise HttpError("its answer is packed, which no worker does")
    given = headers.get("content-length", "")
    known = _LENGTH.fullmatch(given) is not None and "transfer-encoding" not in headers
    if not known or int(given) > max_body_bytes:
        size = given if known else "an unknown number of"
        raise HttpError(f"its answer has {size} bytes, at most {max_body_bytes}")
    return int(given)
