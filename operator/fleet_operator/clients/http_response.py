"""Reads the responses of one HTTP/1.1 connection: complete, of known length, one at a time.

Responses are untrusted. Anything except exactly one response to the one request is an error: encoded,
chunked or interim responses, and additional bytes.
Source: RFC 9112, "HTTP/1.1".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

MAX_HEAD_BYTES = 8 * 1024
"""Limit of the status line and all headers together."""
MAX_HEADERS = 32
MAX_HEADER_BYTES = 1024
"""Limit of one header, and of the status line."""
_STATUS_LINE = r"HTTP/1\.1 ([2-5][0-9][0-9])(?: [^\x00-\x08\x0a-\x1f\x7f]*)?"
_HEADER = r"\r\n[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\x00-\x08\x0a-\x1f\x7f]*"
# Each pattern can match in one way only, so the time is proportional to the bytes.
_STATUS = re.compile(_STATUS_LINE)
_HEAD = re.compile(f"{_STATUS_LINE}((?:{_HEADER})*)")
_NAME_AND_VALUE = re.compile(r"\r\n([^:]+):([^\r]*)")
_LENGTH = re.compile(r"[0-9]{1,15}")


class HttpError(Exception):
    """There is no usable response. The message appears in conditions."""


class HttpResponse(NamedTuple):
    """One response. `headers`: names in lower case. Of several with the same name, the last one."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ResponseReader:
    """Parses the bytes of one connection."""

    __slots__ = ("_head", "_max_body_bytes", "_received")

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._received = bytearray()
        self._head: tuple[int, dict[str, str], int, int] | None = None

    @property
    def received_bytes(self) -> int:
        """The size of the part of a response that has arrived."""
        return len(self._received)

    def clear(self) -> None:
        """Free the part of a response that has arrived."""
        self._received = bytearray()

    def feed(self, data: bytes) -> HttpResponse | None:
        """Take bytes. Returns: the response once it is complete.

        Errors: HttpError if the bytes are not exactly one response. The caller must end the connection.
        """
        if not self._received:
            answer = self._read(data)  # nearly every response arrives in one piece
            if answer is None:
                self._received += data
            return answer
        self._received += data
        answer = self._read(self._received)
        if answer is not None:
            self._received = bytearray()
        return answer

    def _read(self, received: bytes | bytearray) -> HttpResponse | None:
        if self._head is None:
            end = received.find(b"\r\n\r\n")
            if (len(received) if end < 0 else end) > MAX_HEAD_BYTES:
                raise HttpError(f"the headers of its answer have more than {MAX_HEAD_BYTES} bytes")
            if end < 0:
                return None
            status, headers = _head_of(received[:end].decode("latin-1"))
            length = _length_of(headers, self._max_body_bytes)
            self._head = status, headers, end + 4, end + 4 + length
        status, headers, start, end = self._head
        if len(received) < end:
            return None
        if len(received) > end:
            raise HttpError("more bytes came than its answer has")
        self._head = None
        return HttpResponse(status, headers, bytes(received[start:]))


def _head_of(head: str) -> tuple[int, dict[str, str]]:
    """Status and headers."""
    if len(head) > MAX_HEADER_BYTES or head.count("\r\n") > MAX_HEADERS:
        first, *lines = head.split("\r\n")
        if len(lines) > MAX_HEADERS or any(len(x) > MAX_HEADER_BYTES for x in (first, *lines)):
            raise HttpError("its answer has too many or too long headers")
    found = _HEAD.fullmatch(head)
    if found is None:
        if _STATUS.fullmatch(head.partition("\r\n")[0]) is None:
            raise HttpError("the server at this address does not speak HTTP/1.1")
        raise HttpError("a header of its answer is malformed")
    pairs = _NAME_AND_VALUE.findall(found[2])
    headers = {name.lower(): value.strip(" \t") for name, value in pairs}
    if len(headers) < len(pairs) and sum(n.lower() == "content-length" for n, _ in pairs) > 1:
        raise HttpError("its answer has more than one Content-Length")
    return int(found[1]), headers


def _length_of(headers: Mapping[str, str], max_body_bytes: int) -> int:
    if "content-encoding" in headers:
        raise HttpError("its answer is compressed; workers do not compress")
    given = headers.get("content-length", "")
    known = _LENGTH.fullmatch(given) is not None and "transfer-encoding" not in headers
    if not known or int(given) > max_body_bytes:
        size = given if known else "an unknown number of"
        raise HttpError(f"its answer has {size} bytes; the limit is {max_body_bytes}")
    return int(given)
