"""Which weights made which tokens: the spans that every reply carries, and how they are written.

A span `{version, start, end}` says that the output tokens start ≤ i < end of a choice were sampled
from that version. vLLM gives the spans per choice with the last output; its `/inference/v1/generate`
also shows them, no other route does: there they are added here.

Replies differ in where the spans stand (`Dialect`). A choice of several has its own; replies
without choices (`/v1/responses`, `/v1/messages`) get one list over all tokens of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

FIELD = "weight_versions"
# `stop_reason` of a chat is null or follows a `finish_reason`; of a message it is the end itself.
_END = re.compile(rb'_reason":"|"type":"response\.(?:completed|incomplete)"')


class Dialect(Enum):
    """Where a reply carries its spans."""

    CHOICES = "choices"
    """In each choice; of a stream, with the chunk that ends the choice."""
    RESPONSE = "response"
    """`/v1/responses`: on the response; of a stream, in the event that ends it."""
    MESSAGE = "message"
    """`/v1/messages`: on the message; of a stream, in the event with the stop reason."""


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens `start` ≤ i < `end` were sampled from `version`.

    Fields:
        kv_from: the oldest version whose keys and values these tokens may have read; None if it is
            the version itself, as it always is unless a driver kept the cache over a load.
        adapter: version of the LoRA adapter that the request named; None if it named the model.
    """

    version: str
    start: int
    end: int
    kv_from: str | None = None
    adapter: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The span as replies show it."""
        span = {"version": self.version, "start": self.start, "end": self.end}
        more = {"kv_from": self.kv_from, "adapter": self.adapter}
        return span | {key: value for key, value in more.items() if value is not None}

    @property
    def policy(self) -> str:
        """The version that a trainer means: of the adapter, if one was used."""
        return self.adapter if self.adapter is not None else self.version

    @property
    def is_plain(self) -> bool:
        """Whether it says no more than vLLM itself knows."""
        return self.kv_from is None and self.adapter is None


Spans = Mapping[int, Sequence[Span] | None]
"""Choice index → its spans; None where the engine gave no label."""


def stamp(reply: dict[str, Any], spans: Spans, dialect: Dialect) -> None:
    """Write the spans into a whole reply; one without tokens (an error) is left alone."""
    match dialect:
        case Dialect.CHOICES:
            for choice in reply.get("choices") or ():
                _stamp_choice(choice, spans)
        case Dialect.RESPONSE | Dialect.MESSAGE:
            if spans and "error" not in {key for key in reply if reply[key]}:
                reply[FIELD] = _as_json(joined(spans))


def stamp_event(event: dict[str, Any], spans: Spans, dialect: Dialect) -> None:
    """Write the spans into an event of a stream, if it ends what they belong to."""
    match dialect:
        case Dialect.CHOICES:
            for choice in event.get("choices") or ():
                if choice.get("finish_reason") is not None:
                    _stamp_choice(choice, spans)
        case Dialect.RESPONSE:
            if event.get("type") in ("response.completed", "response.incomplete"):
                stamp(event["response"], spans, dialect)
        case Dialect.MESSAGE:
            ends = event.get("type") == "message_delta"
            if ends and event.get("delta", {}).get("stop_reason") is not None:
                stamp(event, spans, dialect)


def may_end(piece: bytes) -> bool:
    """Whether a piece of a stream may hold an end that is to be stamped.

    Asked before anything is taken apart: almost all events are tokens in the middle.
    """
    return _END.search(piece) is not None


def joined(spans: Spans) -> list[Span] | None:
    """One list over all choices, in their order, counted on; None if one of them has no labels."""
    found: list[Span] = []
    for index in sorted(spans):
        each = spans[index]
        if each is None:
            return None
        base = found[-1].end if found else 0
        found += [replace(s, start=s.start + base, end=s.end + base) for s in each]
    return found


def split_events(buffer: bytes) -> tuple[list[bytes], bytes]:
    """The whole events in a piece of a stream, and the beginning of the next one."""
    *whole, rest = buffer.split(b"\n\n")
    return [event + b"\n\n" for event in whole], rest


def parsed_event(event: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """What stands before an event's JSON object, and the object; None for events without one."""
    head, mark, data = event.partition(b"data: {")
    if not mark or (head and not head.startswith(b"event: ")):
        return None
    return head, json.loads(b"{" + data)


def event_of(head: bytes, content: dict[str, Any]) -> bytes:
    """An event made anew."""
    return head + b"data: " + compact(content) + b"\n\n"


def compact(content: dict[str, Any]) -> bytes:
    """JSON as replies have it: no spaces, letters as they are."""
    try:
        return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:  # half a letter of two, which JSON can say and UTF-8 cannot
        return json.dumps(content, separators=(",", ":")).encode()


def first_and_last(spans: Spans, order: Mapping[str, int]) -> tuple[str, str] | None:
    """The oldest and the newest version in a reply, or None if it has no labelled token.

    Args:
        spans: Those of all choices.
        order: Version → number of its load; unknown ones count as older than all.
    """
    versions = [span.version for each in spans.values() for span in each or ()]
    if not versions:
        return None
    versions.sort(key=lambda version: order.get(version, -1))
    return versions[0], versions[-1]


def _stamp_choice(choice: dict[str, Any], spans: Spans) -> None:
    choice[FIELD] = _as_json(spans.get(choice.get("index", 0)))


def _as_json(spans: Sequence[Span] | None) -> list[dict[str, Any]] | None:
    return None if spans is None else [span.as_json() for span in spans]
