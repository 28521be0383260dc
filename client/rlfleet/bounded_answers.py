"""Answers of a server, up to a limit: a user of its objects decides how long they are."""

from __future__ import annotations

from typing import Any

import httpx

from rlfleet.errors import RlfleetError

_OF_THE_WIRE = frozenset({"content-encoding", "content-length", "transfer-encoding"})


async def answer_within(
    http: httpx.AsyncClient, request: dict[str, Any], max_bytes: int | None
) -> httpx.Response:
    """Send a request, and read the whole answer.

    Args:
        http: The client.
        request: Arguments of its `request`.
        max_bytes: Largest body of the answer, after decompression; None for any.

    Errors: RlfleetError for a longer answer, of which no more is read. Those of httpx.
    """
    if max_bytes is None:
        return await http.request(**request)
    content = bytearray()
    async with http.stream(**request) as answer:
        async for part in answer.aiter_bytes():
            content += part
            if len(content) > max_bytes:
                raise RlfleetError(
                    f"the answer to {request['method']} {httpx.URL(request['url']).path} has more than "
                    f"{max_bytes} bytes; make these objects smaller, above all their annotations"
                )
    headers = [(k, v) for k, v in answer.headers.multi_items() if k.lower() not in _OF_THE_WIRE]
    return httpx.Response(
        answer.status_code, headers=headers, content=bytes(content), request=answer.request
    )
