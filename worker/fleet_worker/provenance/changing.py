"""The changes of a reply: first those of the dialect, then the weight versions.

A reply of one choice gets its spans without being parsed, unless its dialect changes it. Of other streams
only the events that need a change are parsed: almost all events are tokens in the middle, and are not
even searched.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fleet_worker.provenance.spans import (
    Dialect,
    compact,
    ends_choice,
    event_of,
    may_end,
    parsed_event,
    split_events,
    stamp,
    stamp_event,
    written_into,
    written_over,
)
from fleet_worker.provenance.tracking import Tokens

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reply:
    """The changes that a dialect makes to vLLM's reply.

    Fields:
        dialect: where the spans are.
        is_stamped: vLLM wrote spans itself. Ours hold more and replace them.
        patch: changes the bytes of a whole reply or of an event, without parsing them.
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


def object_of(body: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a body, or None for anything else, which vLLM refuses itself."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


class Changes:
    """The changes of one reply."""

    __slots__ = ("_reply", "_rest", "_stamped", "_tokens")

    def __init__(self, reply: Reply, tokens: Tokens) -> None:
        """Create the changes of one reply.

        Args:
            reply: The changes of the dialect.
            tokens: The tokens of the request.
        """
        self._reply = reply
        self._tokens = tokens
        self._rest = b""
        self._stamped: set[int] = set()

    @property
    def are_made(self) -> bool:
        """Whether the next events need no change but the patch, unless another choice ends."""
        return self._reply.chunk is None and not self._rest and self._are_stamped

    @property
    def _are_stamped(self) -> bool:
        """Whether the events of all choices that have ended went out."""
        return self._stamped >= self._tokens.spans.keys()

    def whole(self, body: bytes) -> bytes:
        """A whole reply."""
        if self._reply.patch is not None:
            body = self._reply.patch(body)
        stamps = bool(self._tokens.spans)
        if self._reply.whole is None:
            if not stamps:
                return body
            if (ours := self._written(body)) is not None:
                return ours
        reply = json.loads(body)
        if not isinstance(reply, dict):
            return body
        if self._reply.whole is not None:
            reply = self._reply.whole(reply)
        if stamps:
            stamp(reply, self._tokens.spans, self._reply.dialect)
        return compact(reply)

    def _written(self, body: bytes) -> bytes | None:
        """Return a reply or an event with our spans, if that needs no parsing."""
        if self._reply.is_stamped:
            return written_over(body, self._tokens.spans)
        is_one = self._reply.dialect is Dialect.CHOICES and self._tokens.is_of_one_choice
        return written_into(body, self._tokens.spans) if is_one else None

    def refusal(self, body: bytes) -> bytes:
        """The body of a 400."""
        if self._reply.refusal is None or (refusal := object_of(body)) is None:
            return body
        return compact(self._reply.refusal(refusal))

    def events(self, body: bytes, *, last: bool) -> bytes:
        """Return the changed events of a piece of a stream, with the rest of the piece before.

        Args:
            body: The piece; it may end inside an event.
            last: Whether it is the last piece.
        """
        reply = self._reply
        is_cut = self._rest or not body.endswith(b"\n\n")
        if not is_cut and reply.chunk is None and (self._are_stamped or not may_end(body)):
            return body if reply.patch is None else reply.patch(body)
        events, self._rest = split_events(self._rest + body)
        body = b"".join(self._event(event) for event in events)
        if last:
            body, self._rest = body + self._rest, b""
        return body

    def _event(self, event: bytes) -> bytes:
        if self._reply.patch is not None:
            event = self._reply.patch(event)
        stamps = may_end(event)
        if self._reply.chunk is None and not stamps:
            return event
        is_plain = self._reply.chunk is None and self._tokens.is_of_one_choice
        if is_plain and ends_choice(event) and (ours := self._written(event)) is not None:
            self._stamped.add(0)
            return ours
        parsed = parsed_event(event)
        if parsed is None or parsed[1].get("error"):
            return event
        head, content = parsed
        if self._reply.chunk is not None:
            content = self._reply.chunk(content)
        if stamps:
            self._stamped |= stamp_event(content, self._tokens.spans, self._reply.dialect)
        return event_of(head, content)
