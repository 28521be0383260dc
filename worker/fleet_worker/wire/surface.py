"""What a data surface is: a translation of a request to one of vLLM's, and of the reply back.

A surface is a folder with `request.py` and `reply.py`. It keeps nothing between requests; what it
must remember of one stands in the `Reply` that it makes for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fleet_worker.core.model_facts import Facts
from fleet_worker.core.spans import Dialect

__all__ = ["Facts", "Forward", "Json", "Reply", "Translate"]

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of vLLM's reply.

    Fields:
        dialect: where the spans stand.
        is_stamped: vLLM has written spans by itself, which say less than ours and are written over.
        patch: changes bytes, of a whole reply or an event, without taking them apart.
        whole: changes a whole reply.
        chunk: changes an event of a stream.
        refusal: changes the body of a 400.
    """

    dialect: Dialect = Dialect.CHOICES
    is_stamped: bool = False
    patch: Callable[[bytes], bytes] | None = None
    whole: Callable[[Json], Json] | None = None
    chunk: Callable[[Json], Json] | None = None
    refusal: Callable[[Json], Json] | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """What vLLM gets, and what becomes of its reply.

    Fields:
        path: one of vLLM's routes.
        body: None if it goes as it came.
    """

    path: str
    body: Json | None = None
    reply: Reply = field(default_factory=Reply)


Translate = Callable[[str, Json, Facts], Forward]
"""A surface: path and body of a request → what to do. Raises `WireError`."""
