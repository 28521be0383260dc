"""Changing what goes out: first the surface's changes, then the weight versions.

A whole reply is taken apart if anything is to be changed in it, which is nearly always; of a stream
only the events that must be: almost all are tokens in the middle.
"""

from __future__ import annotations

import json

from fleet_worker.core.spans import (
    compact,
    event_of,
    may_end,
    parsed_event,
    split_events,
    stamp,
    stamp_event,
    written_over,
)
from fleet_worker.wire.public.body import object_of
from fleet_worker.wire.public.tracking import Tokens
from fleet_worker.wire.surface import Reply


class Changes:
    """The changes of one reply."""

    def __init__(self, reply: Reply, tokens: Tokens) -> None:
        """Make them.

        Args:
            reply: What the surface wants done.
            tokens: What is collected of the request's tokens.
        """
        self._reply = reply
        self._tokens = tokens
        self._rest = b""

    def whole(self, body: bytes) -> bytes:
        """A whole reply."""
        if self._reply.patch is not None:
            body = self._reply.patch(body)
        stamps = bool(self._tokens.spans)
        if self._reply.whole is None:
            if not stamps:
                return body
            if self._reply.is_stamped and (ours := written_over(body, self._tokens.spans)):
                return ours
        reply = json.loads(body)
        if not isinstance(reply, dict):
            return body
        if self._reply.whole is not None:
            reply = self._reply.whole(reply)
        if stamps:
            stamp(reply, self._tokens.spans, self._reply.dialect)
        return compact(reply)

    def refusal(self, body: bytes) -> bytes:
        """The body of a 400."""
        if self._reply.refusal is None or (refusal := object_of(body)) is None:
            return body
        return compact(self._reply.refusal(refusal))

    def events(self, body: bytes, *, last: bool) -> bytes:
        """A piece of a stream: the whole events in it, and what was left of the piece before.

        Args:
            body: However it was cut.
            last: Nothing comes after it.
        """
        reply = self._reply
        cut = self._rest or not body.endswith(b"\n\n")
        busy = reply.patch is not None or reply.chunk is not None
        if not cut and not busy and not may_end(body):
            return body
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
        parsed = parsed_event(event)
        if parsed is None or parsed[1].get("error"):
            return event
        head, content = parsed
        if self._reply.chunk is not None:
            content = self._reply.chunk(content)
        if stamps:
            stamp_event(content, self._tokens.spans, self._reply.dialect)
        return event_of(head, content)
