"""Errors as clients get them: `application/problem+json`.

Source: RFC 9457. Trainers read the status alone: they end at 4xx and send the request again at 5xx.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from aiohttp import web

from rlfleet.errors import (
    Forbidden,
    NotFound,
    Refused,
    RlfleetError,
    Superseded,
    TimedOut,
    Unavailable,
)

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 1
_OF_THE_VERSION = ("Canary", "Checkpoint", "Digest", "Invalid", "Source")
"""Reasons with these prefixes refuse the version itself: the same request will be refused again."""


class Problem(Exception):
    """An error reply.

    Fields:
        status: the HTTP status.
        reason: one word in CamelCase, for programs.
        message: the fact and the remedy.
        headers: further headers of the reply.
        more: further members of the document.
    """

    def __init__(
        self,
        status: HTTPStatus,
        reason: str,
        message: str,
        *,
        headers: dict[str, str] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message
        self.headers = headers or {}
        self.more = more or {}

    def response(self) -> web.Response:
        """The answer."""
        body: dict[str, Any] = {
            "type": "about:blank",
            "title": self.status.phrase,
            "status": self.status.value,
            "reason": self.reason,
            "detail": self.message,
        } | self.more
        return web.Response(
            status=self.status,
            text=json.dumps(body),
            content_type=MEDIA_TYPE,
            headers=self.headers,
        )


def unauthorized(message: str) -> Problem:
    """401: there are no valid credentials."""
    headers = {"WWW-Authenticate": 'Bearer realm="rlfleet"'}
    return Problem(HTTPStatus.UNAUTHORIZED, "Unauthorized", message, headers=headers)


def invalid(message: str) -> Problem:
    """400: the request cannot be read."""
    return Problem(HTTPStatus.BAD_REQUEST, "BadRequest", message)


def busy(reason: str, message: str, seconds: float = RETRY_SECONDS) -> Problem:
    """503: the same request may succeed after this time."""
    headers = {"Retry-After": str(max(1, round(seconds)))}
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, reason, message, headers=headers)


def too_large(max_bytes: int) -> Problem:
    """413: the body is longer than allowed."""
    message = f"the body has more than {max_bytes} bytes; send a smaller one"
    return Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "RequestEntityTooLarge", message)


def superseded(by: str) -> Problem:
    """409: another request has replaced the version that an earlier one asked for."""
    message = f"the version of the first request was replaced by {by} since then"
    return Problem(HTTPStatus.CONFLICT, "Superseded", message)


def rewound(version: str, reached: str, run_id: str | None) -> Problem:
    """409: a version is lower than the desired one of the same run. No run is a run of its own."""
    run, another = ("no run", "a") if run_id is None else (f"run {run_id}", "another")
    message = (
        f"version {version} is lower than {reached} of {run}, which is desired; within a run, and "
        f"without one, versions only grow. To go back, use POST v1/rl/rollback or `rlfleet rollback "
        f"{version}`. For a new run, send {another} run with its first version: runID to "
        "v1/rl/weights, run_id to the trainers' own routes, or `rlfleet publish --run`"
    )
    return Problem(HTTPStatus.CONFLICT, "RewindRefused", message)


def of_error(error: RlfleetError) -> Problem:  # noqa: PLR0911 - one for each kind
    """The problem for an error of the client library."""
    match error:
        case Refused():
            final = error.reason.startswith(_OF_THE_VERSION)
            status = HTTPStatus.UNPROCESSABLE_ENTITY if final else HTTPStatus.CONFLICT
            return Problem(status, error.reason, error.message)
        case Superseded():
            return Problem(HTTPStatus.CONFLICT, "Superseded", str(error))
        case TimedOut():
            return Problem(HTTPStatus.GATEWAY_TIMEOUT, "NotYetApplied", str(error))
        case NotFound():
            return Problem(HTTPStatus.NOT_FOUND, "NotFound", str(error))
        case Forbidden():
            message = f"the account of the RL API lacks a right: {error}"
            return Problem(HTTPStatus.INTERNAL_SERVER_ERROR, "AccountForbidden", message)
        case Unavailable():
            return busy("Unavailable", str(error), error.retry_after_seconds or RETRY_SECONDS)
        case _:
            return Problem(HTTPStatus.BAD_GATEWAY, "ApiServerError", str(error))


def of_http(error: web.HTTPException) -> Problem:
    """The problem for an error of the web server, such as an unknown path."""
    status = HTTPStatus(error.status)
    headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    reason = status.phrase.title().replace(" ", "").replace("-", "")
    return Problem(status, reason, error.reason, headers=headers)
