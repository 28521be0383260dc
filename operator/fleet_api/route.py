"""A route below a fleet's address."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet_api.calls import Access, Handler

READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


@dataclass(frozen=True, slots=True)
class Route:
    """One route.

    Fields:
        path: below the prefix.
        is_proxied: it is for rollout clients, which send many requests. These have limits of their own,
            and no audit line unless they are refused.
        is_large: its body may be large in an External fleet.
    """

    method: str
    path: str
    handler: Handler
    access: Access
    contract: Contract
    is_proxied: bool = False
    is_large: bool = False

    @property
    def title(self) -> str:
        """The first line of the handler's docstring."""
        return (self.handler.__doc__ or "").strip().partition("\n")[0]


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
