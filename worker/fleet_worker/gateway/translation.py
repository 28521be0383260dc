"""The translation of a request into a request of vLLM, and of its reply.

Each dialect is a file of `translate`. It keeps no state between requests: what the reply needs to
know of the request is in the `Reply` of this request.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet_worker.engine.facts import Facts
from fleet_worker.provenance.changing import Json, Reply

__all__ = ["Facts", "Forward", "Json", "Reply", "Translate"]


@dataclass(frozen=True, slots=True)
class Forward:
    """A request for vLLM, and the changes of its reply.

    Fields:
        path: one of vLLM's routes.
        body: None if it is unchanged.
    """

    path: str
    body: Json | None = None
    reply: Reply = field(default_factory=Reply)


Translate = Callable[[str, Json, Facts], Forward]
"""Translates path and body of a request. Raises `WireError`."""
