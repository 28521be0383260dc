"""The small part of HTTP that the ports share, directly on ASGI, with errors as OpenAI's clients know them.

There is no framework. An answer is one small JSON object with a Content-Length, and a body has a
limit. The same code runs in tests without the environment of an engine.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

Headers = Iterable[tuple[bytes, bytes]]
RETRY_SOON = (b"retry-after", b"1")
GO_ELSEWHERE = (b"connection", b"close")
"""Header that closes the connection. The client's next try opens another one, which the Service may send
to a worker that can answer it.
"""


class BodyTooLargeError(Exception):
    """The client sent more than the route takes."""


def header_of(headers: Headers, name: bytes) -> str | None:
    """The first header of a name (lower case), or None."""
    for key, value in headers:
        if key.lower() == name:
            return value.decode("latin-1")
    return None


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


async def read_body(receive: Receive, *, limit: int, patience: int = 16) -> bytes:
    """The whole body of a request.

    A body that is a little too long is read to its end and dropped: closing a connection with unread
    bytes would lose the answer, too.

    Args:
        receive: Gives the messages of the request.
        limit: The largest body in bytes.
        patience: A body that is longer than this many limits is not read to its end.

    Errors:
        BodyTooLargeError: it is longer than `limit` bytes.
        ClientGoneError: the client closed the connection before the end of the body.
    """
    pieces, length, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGoneError
        piece = bytes(message.get("body", b""))
        length += len(piece)
        if length <= limit:
            pieces.append(piece)
        else:
            pieces.clear()
        more = message.get("more_body", False) and length <= patience * limit
    if length > limit:
        raise BodyTooLargeError
    return b"".join(pieces)


async def answer_json(
    send: Send, status: int, body: bytes | dict[str, Any], headers: Headers = ()
) -> None:
    """Answer with a JSON object."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    await answer(send, status, content, b"application/json", headers)


async def answer(
    send: Send, status: int, content: bytes, media_type: bytes, headers: Headers = ()
) -> None:
    """Answer with a whole body."""
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [
                (b"content-type", media_type),
                (b"content-length", str(len(content)).encode()),
                *headers,
            ],
        }
    )
    await send({"type": "http.response.body", "body": content})


class WireError(Exception):
    """A request that is not served, or a reply that must not go out.

    Fields:
        status: HTTP status. 4xx is final for the client except for 409 and 429. These and 503 come with
            Retry-After.
        kind: the error's type, a class name as vLLM uses them.
        param: which part of the request is meant.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "BadRequestError",
        param: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.headers = list(headers)

    def as_json(self) -> dict[str, Any]:
        """The body of the answer; also an event of a stream."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.status,
            }
        }


def bad_request(message: str, param: str | None = None) -> WireError:
    """The request itself is wrong; sending it again changes nothing."""
    return WireError(400, message, param=param)


def broken_reply(message: str) -> WireError:
    """The engine's reply does not fit together; no part of it is given out."""
    return WireError(500, message, kind="InternalServerError")


def ended_without_tokens() -> WireError:
    """The request was ended before its first token, by a pause or a drain. Another try may succeed.

    Not a 503: routers count it as a failure of the worker.
    """
    return WireError(
        429,
        "the request was ended before its first token; send it again",
        kind="RequestEndedError",
        headers=[RETRY_SOON, GO_ELSEWHERE],
    )


async def answer_error(send: Send, error: WireError) -> None:
    """Answer with an error."""
    await answer_json(send, error.status, error.as_json(), error.headers)
