"""What a control surface is: routes of the admin port, each a small call with a small answer.

A surface is a folder with `request.py` (its bodies) and `reply.py` (its routes and what they
answer). It decides nothing: what a call does is the agent's or the driver's matter, and every
surface calls the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from fleet_worker.core.refusals import EngineFailure, Refusal, shorten
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
        path: without the token, should it have stood there.
        rest: of the path, where a route takes all that begin like it.
        query: parameters and their values, as they came.
        client: address of the caller.
    """

    method: str
    path: str
    body: bytes = b""
    query: tuple[tuple[str, str], ...] = ()
    client: str = ""
    rest: str = ""

    @property
    def who(self) -> str:
        """Whom a second driver is told about."""
        return f"trainer at {self.client}"

    @property
    def parameters(self) -> Json:
        """The last value of each parameter."""
        return dict(self.query)


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back.

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
"""A refusal or failure, and its HTTP status, in a surface's own words."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The routes of one kind of client.

    Fields:
        routes: (method, path) → handler. A path that ends with `/` takes all that begin like it.
        explain: how this kind of client is told that something was refused or failed.
        body_limit: bytes that a body may have.
    """

    name: str
    routes: Mapping[tuple[str, str], Handler]
    explain: Explain
    body_limit: int = SMALL_BODY


class Lenient(BaseModel):
    """A body of a trainer's: keys that we do not know are for somebody else."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def parsed(model: type[Body], call: Call) -> Body:
    """The body of a call; an absent one is an empty object.

    Errors:
        Refusal: `BadRequest`, naming the fields but not what was sent.
    """
    try:
        return model.model_validate_json(call.body or b"{}")
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, shorten(_problems_of(error))) from error


def asked(model: type[Body], call: Call, **also: Any) -> Body:
    """The parameters of a call's query, read as a body is.

    Args:
        model: What they are.
        call: The call.
        also: Parameters that may come several times, as lists.
    """
    try:
        return model.model_validate({**call.parameters, **also})
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, shorten(_problems_of(error))) from error


def explain_to_trainer(error: Refusal | EngineFailure, status: int) -> Answer:
    """An error as trainers know them: 4xx is final, 5xx may be tried again."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if isinstance(error, Refusal) and error.retry_after_seconds is not None:
        headers = ((b"retry-after", str(math.ceil(error.retry_after_seconds)).encode()),)
    content = {
        "status": "error",
        "error": {"message": error.message, "type": error.reason.value, "code": status},
    }
    return Answer(content, status, headers)


def _problems_of(error: ValidationError) -> str:
    """Which field and what is wrong with it, but not what was sent."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False, include_context=False)
    )
