"""Answers of a server, up to a limit: a user of its objects decides how long they are."""

from __future__ import annotations

from typing import Any

import httpx

from rlfleet.errors import RlfleetError

_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})


class TooLarge(RlfleetError):
    """An answer has more bytes than are read. A list may ask for fewer objects at a time."""


class Body:
    """The bytes that have come."""

    def __init__(self, request: dict[str, Any], max_bytes: int) -> None:
        self._request = request
        self._max_bytes = max_bytes
        self._content = bytearray()

    def add(self, part: bytes) -> None:
        """Keep some more. Errors: TooLarge."""
        self._content += part
        if len(self._content) > self._max_bytes:
            raise TooLarge(
                f"the answer to {self._request['method']} {httpx.URL(self._request['url']).path} has more than "
                f"{self._max_bytes} bytes; make these objects smaller, above all their annotations"
            )

    def of(self, answer: httpx.Response) -> httpx.Response:
        """The answer with them."""
        headers = [(k, v) for k, v in answer.headers.multi_items() if k.lower() not in _OF_THE_WIRE]
        return httpx.Response(
            answer.status_code,
            headers=headers,
            content=bytes(self._content),
            request=answer.request,
        )
