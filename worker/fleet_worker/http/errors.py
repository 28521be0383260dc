"""Errors as OpenAI's clients know them: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from typing import Any

from fleet_worker.http.asgi import Headers, Send, answer_json


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


async def answer_error(send: Send, error: WireError) -> None:
    """Answer with an error."""
    await answer_json(send, error.status, error.as_json(), error.headers)
