"""Write spans into replies: the weights that made each token.

A span `{version, start, end, run_id, digest}` says that the output tokens start ≤ i < end of a choice
were sampled from those weights. vLLM reports the spans of each choice with its last output, under its
own label of the weights. Only its `/inference/v1/generate` shows them to clients. This module adds them
to replies, or replaces them.

The place of the spans depends on the route (`Dialect`). Each choice has its own list. Replies without
choices (`/v1/responses`, `/v1/messages`) get one list over all tokens of the reply.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from fleet_worker.checkpoint.identity import WeightName

FIELD = "weight_versions"
_FIELD = b'"weight_versions"'
# vLLM writes no spaces, and one `message_delta` per message: its last event but one. An aborted message
# has no stop reason there. Source: `message_stream_converter` of vLLM.
_SPAN = re.compile(rb'\{"version":"([^"\\]*)","start":([0-9]+),"end":([0-9]+)\}')
_CHOICE = b'"choices":[{"'
_ENDED = b'"finish_reason":"'
_ENDS = (
    b'_reason":"',
    b'"type":"message_delta"',
    b'"type":"response.completed"',
    b'"type":"response.incomplete"',
)


class Dialect(Enum):
    """The place of the spans in a reply."""

    CHOICES = "choices"
    """In each choice. In a stream: with the chunk that ends the choice."""
    RESPONSE = "response"
    """`/v1/responses`: on the response. In a stream: with the event that ends it."""
    MESSAGE = "message"
    """`/v1/messages`: on the message. In a stream: with its `message_delta`."""


@dataclass(frozen=True, slots=True)
class Span:
    """Output tokens `start` ≤ i < `end` were sampled from `version`.

    Fields:
        run_id: the run that the version belongs to, if a call named one or it came over a collective.
        digest: first 12 hex digits of the digest. None for weights that came over a collective.
        kv_from: the oldest weights whose keys and values these tokens may have read. None if they are
            the same weights. They differ only if a driver kept the cache over a load.
        adapter: weights of the LoRA adapter that the request named. None if it named the model.
        scope: see `WeightName`; replies do not show it.
    """

    version: str
    start: int
    end: int
    kv_from: WeightName | None = None
    adapter: WeightName | None = None
    run_id: str | None = None
    digest: str | None = None
    scope: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the span in the form of replies."""
        span = {"version": self.version, "start": self.start, "end": self.end}
        more = {
            "run_id": self.run_id,
            "digest": self.digest,
            **_fields_of("kv_from", self.kv_from),
            **_fields_of("adapter", self.adapter),
        }
        return span | {key: value for key, value in more.items() if value is not None}

    @property
    def name(self) -> WeightName:
        """The name of the weights."""
        return WeightName(self.version, self.run_id, self.digest, self.scope)

    @property
    def policy(self) -> WeightName:
        """The weights that a trainer trains: the adapter if the request named one."""
        return self.adapter if self.adapter is not None else self.name


def _fields_of(key: str, name: WeightName | None) -> dict[str, str | None]:
    if name is None:
        return {}
    return {key: name.version, f"{key}_run_id": name.run_id, f"{key}_digest": name.digest}


Spans = Mapping[int, Sequence[Span] | None]
"""Choice index → its spans; None if the engine gave no label."""


def stamp(reply: dict[str, Any], spans: Spans, dialect: Dialect) -> None:
    """Write the spans into a whole reply. A reply without tokens (an error) does not change."""
    match dialect:
        case Dialect.CHOICES:
            for choice in reply.get("choices") or ():
                _stamp_choice(choice, spans)
        case Dialect.RESPONSE | Dialect.MESSAGE:
            if spans and "error" not in {key for key in reply if reply[key]}:
                reply[FIELD] = _as_json(joined(spans))


def stamp_event(event: dict[str, Any], spans: Spans, dialect: Dialect) -> set[int]:
    """Write the spans into an event of a stream, if it ends a choice or the reply.

    Returns:
        The indexes of the choices that it ends.
    """
    match dialect:
        case Dialect.CHOICES:
            ended = [c for c in event.get("choices") or () if c.get("finish_reason") is not None]
            for choice in ended:
                _stamp_choice(choice, spans)
            return {choice.get("index", 0) for choice in ended}
        case Dialect.RESPONSE:
            if event.get("type") in ("response.completed", "response.incomplete"):
                stamp(event["response"], spans, dialect)
        case Dialect.MESSAGE:
            if event.get("type") == "message_delta":
                stamp(event, spans, dialect)
    return set()


def may_end(piece: bytes) -> bool:
    """Return whether a piece of a stream may hold the end of a choice or reply.

    A cheap test before parsing, because almost all events are tokens in the middle.
    """
    return any(mark in piece for mark in _ENDS)


def ends_choice(event: bytes) -> bool:
    """Return whether an event ends a choice; in other forms of JSON than vLLM's this may be False, too."""
    return _ENDED in event


def joined(spans: Spans) -> list[Span] | None:
    """Return one list over all choices, with continued positions; None if a choice has no label."""
    found: list[Span] = []
    for index in sorted(spans):
        each = spans[index]
        if each is None:
            return None
        base = found[-1].end if found else 0
        found += [replace(s, start=s.start + base, end=s.end + base) for s in each]
    return found


def split_events(buffer: bytes) -> tuple[list[bytes], bytes]:
    """Return the complete events in a piece of a stream, and the begin of the next one."""
    *whole, rest = buffer.split(b"\n\n")
    return [event + b"\n\n" for event in whole], rest


def parsed_event(event: bytes) -> tuple[bytes, dict[str, Any]] | None:
    """Return the text before an event's JSON object, and the object; None for other events."""
    head, mark, data = event.partition(b"data: {")
    name = head.lstrip(b"\n")  # a piece may end inside the end of the event before
    if not mark or (name and not name.startswith(b"event: ")):
        return None
    return head, json.loads(b"{" + data)


def event_of(head: bytes, content: dict[str, Any]) -> bytes:
    """Return an event with this text and JSON object."""
    return head + b"data: " + compact(content) + b"\n\n"


_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def compact(content: object) -> bytes:
    """Return JSON without spaces and without escapes, as in vLLM's replies."""
    try:
        return _COMPACT.encode(content).encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which UTF-8 cannot encode
        return json.dumps(content, separators=(",", ":")).encode()


def first_and_last(
    spans: Spans, order: Mapping[WeightName, int]
) -> tuple[WeightName, WeightName] | None:
    """Return the weights of the first and of the last token, or None if no token has a label.

    Choices are made at the same time. Of their first tokens the one of the oldest weights counts, and
    of their last tokens the one of the newest. Within a choice the position decides: after a rollback
    older weights continue.

    Args:
        spans: Spans of all choices.
        order: Name → number of its latest load. Unknown names are the oldest.
    """
    first = first_names(spans)
    if not first:
        return None

    def loaded(name: WeightName) -> int:
        return order.get(name, -1)

    last = [each[-1].name for each in spans.values() if each]
    return min(first, key=loaded), max(last, key=loaded)


def first_names(spans: Spans) -> list[WeightName]:
    """Return the weights of the first token of each choice that has labels."""
    return [each[0].name for each in spans.values() if each]


def written_over(body: bytes, spans: Spans) -> bytes | None:
    """Return a reply with our spans in place of those that vLLM wrote.

    It replaces bytes without parsing, which would take a hundred times as long for a long reply. A
    JSON string cannot contain such an object, because its quotes would be escaped.

    Returns:
        None if the reply has other spans than the known ones. The caller must parse it then.
    """
    ours = [span for index in sorted(spans) for span in spans[index] or ()]
    theirs = list(_SPAN.finditer(body))
    found = [(m[1].decode(), int(m[2]), int(m[3])) for m in theirs]
    if found != [(span.version, span.start, span.end) for span in ours]:
        return None
    pieces, position = [], 0
    for match, span in zip(theirs, ours, strict=True):
        pieces += [body[position : match.start()], compact(span.as_json())]
        position = match.end()
    return b"".join([*pieces, body[position:]])


def written_into(body: bytes, spans: Spans) -> bytes | None:
    """Return a reply of one choice, or the event that ends it, with the spans of the choice, whose index is 0.

    It adds bytes without parsing the others. A JSON string cannot contain the key, because its quotes
    would be escaped.

    Returns:
        None if the bytes do not show one choice without spans. The caller must parse them then.
    """
    if 0 not in spans or body.count(_CHOICE) != 1 or _FIELD in body:
        return None
    at = body.index(_CHOICE) + len(_CHOICE) - 1
    return b"%b%b:%b,%b" % (body[:at], _FIELD, compact(_as_json(spans[0])), body[at:])


def _stamp_choice(choice: dict[str, Any], spans: Spans) -> None:
    choice[FIELD] = _as_json(spans.get(choice.get("index", 0)))


def _as_json(spans: Sequence[Span] | None) -> list[dict[str, Any]] | None:
    return None if spans is None else [span.as_json() for span in spans]
