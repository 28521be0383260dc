"""A request's body: read whole, within a limit, and handed to vLLM again, changed or not."""

from __future__ import annotations

import json
from typing import Any

from fleet_worker.wire.asgi import ClientGoneError, Message, Receive, Scope
from fleet_worker.wire.errors import WireError

BODY_LIMIT = 64 * 1024 * 1024
"""Bytes. A million token ids are 7 MB; the rest is for images, which come as base64."""


async def read_whole(receive: Receive, *, limit: int = BODY_LIMIT) -> bytes:
    """The body of a request.

    Errors:
        WireError: 413, it is longer than `limit` bytes.
        ClientGoneError: there is nobody to answer.
    """
    pieces, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = bytes(message.get("body", b""))
        length += len(piece)
        more = bool(message.get("more_body", False))
        if length <= limit:
            pieces.append(piece)
        else:
            # What is a little too long is read to its end and thrown away: a connection that is
            # closed on unread bytes loses the answer, too.
            pieces.clear()
            more = more and length <= 2 * limit
    if length > limit:
        raise WireError(413, f"a request's body has at most {limit} bytes")
    return b"".join(pieces)


def object_of(body: bytes) -> dict[str, Any] | None:
    """The JSON object in a body; None for anything else, about which vLLM says what is wrong."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that hands out a body that was read already, then what else comes."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return pending.pop() if pending else await receive()

    return replay


def rerouted(scope: Scope, path: str, body: bytes) -> Scope:
    """The scope of a request for another path, with another body."""
    headers = [(k, v) for k, v in scope["headers"] if k.lower() != b"content-length"]
    headers = [(k, v) for k, v in headers if k.lower() != b"transfer-encoding"]
    headers.append((b"content-length", str(len(body)).encode()))
    return {**scope, "path": path, "raw_path": path.encode(), "headers": headers}
