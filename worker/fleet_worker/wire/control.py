"""What a control surface is: routes of the admin port, each a small call with a small answer.

A surface is a folder with `request.py` (its bodies) and `reply.py` (its routes and what they
answer). It decides nothing: what a call does is the agent's or the driver's matter, and every
surface calls the same ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from fleet_worker.core.refusals import EngineFailure, Refusal, shorten
from fleet_worker.protocol import Reason

Json = dict[str, Any]
Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Call:
    """One request to the admin port, authenticated and read to its end.

    Fields:
        path: without the token, should it have stood there.
        rest: of the path, where a route takes all that begin like it.
        query: the last value of each parameter.
        client: address of the caller.
    """

    method: str
    path: str
    body: bytes = b""
    query: Mapping[str, str] = field(default_factory=dict)
    client: str = ""
    rest: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back.

    Fields:
        content: a JSON object, or its bytes.
    """

    content: Json | bytes
    status: int = 200


Handler = Callable[[Call], Awaitable[Answer]]
Explain = Callable[[Refusal | EngineFailure, int], Answer]
"""A refusal or failure, and its HTTP status, in a surface's own words."""


@dataclass(frozen=True, slots=True)
class Surface:
    """The routes of one kind of client.

    Fields:
        routes: (method, path) → handler. A path that ends with `/` takes all that begin like it.
        explain: how this kind of client is told that something was refused or failed.
    """

    name: str
    routes: Mapping[tuple[str, str], Handler]
    explain: Explain


def parsed(model: type[Body], call: Call) -> Body:
    """The body of a call; an absent one is an empty object.

    Errors:
        Refusal: `BadRequest`, naming the fields but not what was sent.
    """
    try:
        return model.model_validate_json(call.body or b"{}")
    except ValidationError as error:
        raise Refusal(Reason.BAD_REQUEST, shorten(problems_of(error))) from error


def problems_of(error: ValidationError) -> str:
    """Which field and what is wrong with it, but not what was sent."""
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or 'body'}: {each['msg']}"
        for each in error.errors(include_input=False, include_url=False, include_context=False)
    )
