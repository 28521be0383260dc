"""The declaration of a route, from which OpenAPI is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
BODY_ERRORS = frozenset({400, 408, 413, 422})
CHANGE_ERRORS = BODY_ERRORS | {409, 504}


@dataclass(frozen=True, slots=True)
class Contract:
    """Documents and statuses of a route, besides the errors that every route has.

    Fields:
        replies: type of the document by status, for each reply that is not a problem.
        errors: further statuses whose reply is a problem.
        body: type of the request's body; None for a route that reads none.
        headers: optional headers of the request that change the reply, with their meaning.
        query: the same for parameters of the query.
        media: media type of the replies.
        is_open: another program may answer with any further status and document.
    """

    replies: Mapping[int, Any]
    errors: frozenset[int] = frozenset()
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)
    media: str = JSON
    is_open: bool = False
