"""Writing weight versions into replies: spans into choices, first and last label into headers.

A span `{version, start, end}` says that the output tokens start ≤ i < end of a choice were sampled
from that version. vLLM gives the spans per choice with the last output; its `/inference/v1/generate`
also shows them, `/v1/completions` and `/v1/chat/completions` do not: there they are added here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

FIELD = "weight_versions"


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens `start` ≤ i < `end` were sampled from `version`."""

    version: str
    start: int
    end: int

    def as_json(self) -> dict[str, Any]:
        """The span as replies show it."""
        return {"version": self.version, "start": self.start, "end": self.end}


Spans = Mapping[int, Sequence[Span] | None]
"""Choice index → its spans; None where the engine gave no label."""


def stamped_body(body: bytes, spans: Spans) -> bytes:
    """A whole JSON reply with the spans in each of its choices.

    A reply without choices (an error) comes back as it is.
    """
    reply = json.loads(body)
    choices = reply.get("choices") if isinstance(reply, dict) else None
    if not choices:
        return body
    for choice in choices:
        _stamp(choice, spans)
    return json.dumps(reply, ensure_ascii=False, separators=(",", ":")).encode()


def stamped_event(event: bytes, spans: Spans) -> bytes:
    """A server-sent event with the spans in every choice that ends with it.

    Args:
        event: One event, `data: …` with its closing blank line.
        spans: Those of the choices that have ended so far.
    """
    if not event.startswith(b"data: {") or not may_end_a_choice(event):
        return event
    chunk = json.loads(event[len(b"data: ") :])
    for choice in chunk.get("choices") or ():
        if choice.get("finish_reason") is not None:
            _stamp(choice, spans)
    return (
        b"data: " + json.dumps(chunk, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
    )


def may_end_a_choice(piece: bytes) -> bool:
    """Whether a piece of a stream may hold the end of a choice.

    Asked before anything is taken apart: almost all events are tokens in the middle.
    """
    return b'"finish_reason":"' in piece


def split_events(buffer: bytes) -> tuple[list[bytes], bytes]:
    """The whole events in a piece of a stream, and the beginning of the next one."""
    *whole, rest = buffer.split(b"\n\n")
    return [event + b"\n\n" for event in whole], rest


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


def _stamp(choice: dict[str, Any], spans: Spans) -> None:
    found = spans.get(choice.get("index", 0))
    choice[FIELD] = None if found is None else [span.as_json() for span in found]
