"""The parts of an API of the admin port: calls, answers and routes, all small.

Each API is one file with its bodies, routes and answers. It decides nothing: the agent or the driver
carries out the call, the same way for every API.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet_worker.errors import EngineFailure, Refusal, shorten
from fleet_worker.protocol import Reason

SMALL_BODY = 64 * 1024
LARGE_BODY = 16 * 1024 * 1024
"""Names, types and shapes of all tensors of a model with many experts are a few MiB."""

Json = dict[str, Any]
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the admin port, authenticated and read to its end.

    Fields:
        path: without a token.
        rest: the end of the path, for a route that is a prefix.
        query: parameters and their values, in their order.
        client: address of the caller.
        driver: name of the trainer in a signed call; empty without one.
    """

    method: str
    path: str
    body: bytes = b""
    query: tuple[tuple[str, str], ...] = ()
    client: str = ""
    rest: str = ""
    driver: str = ""

    @property
    def caller(self) -> str:
        """Name of this caller, as the holder of leases and in the message to a second driver."""
        return self.driver or f"trainer at {self.client}"

    @property
    def parameters(self) -> Json:
        """The last value of each parameter."""
        return dict(self.query)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer.

    Fields:
        content: a JSON object, or bytes.
        media_type: of the bytes.
    """

    content: Json | bytes
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()
    media_type: bytes = b"application/json"


Handler = Callable[[Call], Awaitable[Answer]]
Explain = Callable[[Refusal | EngineFailure, int], Answer]
"""Makes the answer of an API for a refusal or failure and its HTTP status."""


@dataclass(frozen=True, slots=True)
class Api:
    """The routes of one kind of client.

    Fields:
        routes: (method, path) → handler. A path that ends with `/` is a prefix.
        explain: makes the answer for a refusal or a failure.
        body_limit: largest body in bytes.
    """

    name: str
    routes: Mapping[tuple[str, str], Handler]
    explain: Explain
    body_limit: int = SMALL_BODY


class Lenient(BaseModel):
    """A body of a trainer. Unknown keys are for other servers."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def parsed(model: type[Body], call: Call) -> Body:
    """Return the body of a call. An absent body is an empty object.

    Errors:
        Refusal: `BadRequest`, naming the fields but not what was sent.
    """
    try:
        return model.model_validate_json(call.body or b"{}")
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, shorten(_problems_of(error))) from error


def asked(model: type[Body], call: Call, **also: Any) -> Body:
    """Return the parameters of a call's query, validated like a body.

    `also`: parameters that may come several times, as lists.
    """
    try:
        return model.model_validate({**call.parameters, **also})
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, shorten(_problems_of(error))) from error


def explain_to_trainer(error: Refusal | EngineFailure, status: int) -> Answer:
    """Make the answer to a trainer. 4xx is final, 5xx may be retried."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, Refusal) and error.retry_after_seconds is not None:
        headers = ((b"retry-after", str(math.ceil(error.retry_after_seconds)).encode()),)
    content = {
        "status": "error",
        "error": {"message": error.message, "type": error.reason.value, "code": status},
    }
    return Answer(content, status, headers)


def _problems_of(error: ValidationError) -> str:
    """Name each field and its error, but not its value."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False, include_context=False)
    )
