"""Streams are rewritten event by event, for any chunks and any text."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.support.fake_server import FakeChoice

from fleet_worker.checkpoint.identity import WeightName, WeightNames
from fleet_worker.gateway.translation import Json, Reply
from fleet_worker.http.asgi import WireError
from fleet_worker.lifecycle.kept_cache import KeptCache
from fleet_worker.provenance import changing
from fleet_worker.provenance.changing import Changes
from fleet_worker.provenance.demands import Demand
from fleet_worker.provenance.spans import Dialect, Span
from fleet_worker.provenance.stamping import CutShortError, Stamping
from fleet_worker.provenance.tracking import Tokens, collecting, tracked

SPANS = {0: [Span("1", 0, 2), Span("2", 2, 5)], 1: [Span("2", 0, 3)], 2: None}
SHOWN = {
    0: [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 5}],
    1: [{"version": "2", "start": 0, "end": 3}],
    2: None,
}
DONE = b"data: [DONE]\n\n"


def tokens_of(spans: Any = None, choices: int = 3) -> Tokens:
    """Tokens of a request for some choices, of which some have ended."""
    tokens = Tokens(WeightNames(), lambda: WeightName("2"), KeptCache())
    tokens.begin({}, SimpleNamespace(n=choices), "x")
    tokens.spans = dict(SPANS if spans is None else spans)
    tokens.first = tokens.last = WeightName("1")
    return tokens


def written(content: Json, head: bytes = b"") -> bytes:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return head + b"data: " + text.encode() + b"\n\n"


def pieces_of(stream: bytes, cuts: Iterable[int]) -> list[bytes]:
    places = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[a:b] for a, b in itertools.pairwise(places)]


def rewritten(changes: Changes, pieces: Sequence[bytes]) -> list[bytes]:
    return [changes.events(p, last=n + 1 == len(pieces)) for n, p in enumerate(pieces)]


def stamped(content: Json) -> Json:
    """The expected output: the spans at every choice that ends, and no other change."""
    choices = [
        choice | ({"weight_versions": SHOWN[choice["index"]]} if choice["finish_reason"] else {})
        for choice in content["choices"]
    ]
    return {**content, "choices": choices}


# --- any stream, in any pieces ------------------------------------------------------------------

NASTY = st.sampled_from(
    ['_reason":"', "data: {", "\n\n", "\r\n\r\n", "[DONE]", '"error":{}', "\N{GRINNING FACE}", "\\"]
) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
CHOICE = st.builds(
    lambda index, text, reason: {"index": index, "text": text, "finish_reason": reason},
    st.integers(0, 2),
    NASTY,
    st.sampled_from([None, None, "stop", "length"]),
)


def ending_once(events: list[Any]) -> list[Any]:
    """As vLLM ends a choice."""
    ended: set[int] = set()
    for event in events:
        for choice in event.get("choices", ()) if isinstance(event, dict) else ():
            if choice["index"] in ended:
                choice["finish_reason"] = None
            elif choice["finish_reason"] is not None:
                ended.add(choice["index"])
    return events


EVENTS = st.lists(
    st.one_of(
        st.lists(CHOICE, min_size=1, max_size=3).map(lambda choices: {"choices": choices}),
        st.builds(lambda n: {"choices": [], "usage": {"completion_tokens": n}}, st.integers(0, 9)),
        st.builds(lambda text: {"error": {"message": text, "stop_reason": "x"}}, NASTY),
        st.sampled_from([b": ping\n\n", b"\n\n", b"event: ping\n\n"]),
    ),
    max_size=6,
).map(ending_once)


ENDED = {"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}


@settings(max_examples=200)
@example([b": ping\n\n", b"\n\n", ENDED], [len(b": ping\n\n") + 1])
@given(EVENTS, st.lists(st.integers(1, 600), max_size=8))
def test_every_choice_gets_its_spans_for_any_chunks(events: list[Any], cuts: list[int]) -> None:
    stream = b"".join(e if isinstance(e, bytes) else written(e) for e in events) + DONE
    expected = b"".join(
        e if isinstance(e, bytes) else written(stamped(e) if "choices" in e else e) for e in events
    )
    found = rewritten(Changes(Reply(), tokens_of()), pieces_of(stream, cuts))

    assert b"".join(found) == expected + DONE
    assert all(piece.endswith(b"\n\n") or not piece for piece in found), "events go out whole"


LONG = [
    {"choices": [{"index": 0, "text": 'é\n\n_reason":"', "finish_reason": None}]},
    {"choices": [{"index": 1, "text": "\N{GRINNING FACE}", "finish_reason": "stop"}]},
    {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]},
]


def test_a_stream_may_be_split_at_every_byte() -> None:
    stream = b"".join(map(written, LONG)) + DONE
    expected = b"".join(written(stamped(event)) for event in LONG) + DONE
    for cut in range(1, len(stream)):
        found = rewritten(Changes(Reply(), tokens_of()), [stream[:cut], stream[cut:]])
        assert b"".join(found) == expected, cut
    single = [stream[n : n + 1] for n in range(len(stream))]
    assert b"".join(rewritten(Changes(Reply(), tokens_of()), single)) == expected


def test_a_stream_that_breaks_off_passes_on_what_it_had() -> None:
    stream = b"".join(map(written, LONG)) + DONE
    whole = b"".join(written(stamped(event)) for event in LONG)
    for cut in range(1, len(stream)):
        changes = Changes(Reply(), tokens_of())
        found = changes.events(stream[:cut], last=False) + changes.events(b"", last=True)
        ended = stream[:cut].rfind(b"\n\n") + 2 if b"\n\n" in stream[:cut] else 0
        events = stream[:ended].count(b"\n\n")
        expected = b"".join(written(stamped(event)) for event in LONG[:events])
        assert found == expected + (DONE if events > 3 else b"") + stream[ended:cut]
        assert (whole + DONE).startswith(expected)


@settings(max_examples=100)
@given(EVENTS, st.lists(st.integers(1, 600), max_size=5))
def test_a_translation_sees_each_object_once_and_before_its_stamp(
    events: list[Any], cuts: list[int]
) -> None:
    seen: list[Json] = []

    def chunk(content: Json) -> Json:
        assert "weight_versions" not in json.dumps(content)
        seen.append(copy.deepcopy(content))
        return {**content, "seen": len(seen)}

    def patch(event: bytes) -> bytes:
        return event.replace(b'"index":1', b'"index": 1')

    stream = b"".join(e if isinstance(e, bytes) else written(e) for e in events) + DONE
    reply = Reply(chunk=chunk, patch=patch)
    found = b"".join(rewritten(Changes(reply, tokens_of()), pieces_of(stream, cuts)))
    objects = [e for e in events if not isinstance(e, bytes) and "choices" in e]

    assert seen == objects
    shown = [json.loads(line[6:]) for line in found.split(b"\n\n") if line.startswith(b"data: {")]
    assert [e for e in shown if "choices" in e] == [
        {**stamped(e), "seen": n + 1} for n, e in enumerate(objects)
    ]


# --- a reply of one choice, which is not parsed ---------------------------------------------------

KEPT = {"f": 1e-05, "big": 10**25, "text": "é\\u00e9", "logprobs": None}
"""Parsed and written again, these would have other bytes."""
ONE = {"index": 0, **KEPT, "finish_reason": "stop", "stop_reason": None}
ODD = b'{"id": "x", "choices": [ {"index":0,"finish_reason":"stop"} ]}'
"""As no vLLM writes it."""


@pytest.mark.parametrize("spans", [SPANS[0], SPANS[2]])
@pytest.mark.parametrize("key", ["text", "message"])
def test_one_choice_gets_its_spans_and_all_other_bytes_stay(
    monkeypatch: pytest.MonkeyPatch, spans: Any, key: str
) -> None:
    monkeypatch.setattr(changing, "json", None)
    monkeypatch.setattr(changing, "parsed_event", None)
    choice = ONE | {key: 'é "choices":[{"index":0}], "weight_versions", "finish_reason":"x"'}
    content = {"id": "x", "choices": [choice], "usage": {"n": 1}}
    event = written(content)
    body = event.removeprefix(b"data: ").strip()
    shown = SHOWN[0] if spans else None
    expected = {**content, "choices": [choice | {"weight_versions": shown}]}
    changes = Changes(Reply(), tokens_of({0: spans}, choices=1))
    found = [changes.whole(body), changes.events(event, last=False).removeprefix(b"data: ")]

    ours = b'"weight_versions":%b,' % json.dumps(shown, separators=(",", ":")).encode()
    for each in found:
        assert json.loads(each) == expected
        assert each.strip().replace(ours, b"", 1) == body
    assert changes.are_made


@pytest.mark.parametrize(
    ("body", "choices"),
    [
        pytest.param(ODD, 1, id="other spaces"),
        pytest.param(b'{"choices":[{"index":0,"weight_versions":null}]}', 1, id="vLLM's own spans"),
        pytest.param(b'{"choices":[{"index":0},{"index":1}]}', 2, id="two choices"),
        pytest.param(b'{"choices":[{"index":1}]}', 2, id="the second of two choices"),
        pytest.param(b'{"choices":[{"index":0}],"x":{"choices":[{"index":0}]}}', 1, id="twice"),
        pytest.param(b'{"choices":[{}]}', 1, id="an empty one"),
        pytest.param(b'{"choices":[],"x":"choices"}', 1, id="none"),
    ],
)
def test_a_reply_that_is_not_plainly_one_choice_is_parsed(body: bytes, choices: int) -> None:
    spans = {n: SPANS[n] for n in range(choices)}
    found = Changes(Reply(), tokens_of(spans, choices=choices)).whole(body)
    content = json.loads(body)

    assert json.loads(found)["choices"] == [
        choice | {"weight_versions": SHOWN[choice.get("index", 0)]} for choice in content["choices"]
    ]


def test_an_event_that_ends_nothing_gets_no_spans() -> None:
    events = [
        written({"choices": [{**ONE, "finish_reason": None, "stop_reason": "x"}]}),
        written({"error": {"message": "failed", "finish_reason": "x"}}),
    ]
    for event in events:
        changes = Changes(Reply(), tokens_of({0: SPANS[0]}, choices=1))
        assert changes.events(event, last=False) == event
        assert not changes.are_made


@pytest.mark.parametrize("cut", range(1, 60))
def test_spans_that_vllm_wrote_into_a_stream_are_replaced_without_parsing(
    monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(changing, "parsed_event", None)
    theirs = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 5}]
    event = written({"choices": [ONE | {"weight_versions": theirs}]})
    spans = {0: [Span("1", 0, 2, run_id="r"), Span("2", 2, 5, run_id="r")]}
    changes = Changes(Reply(is_stamped=True), tokens_of(spans, choices=1))
    found = b"".join(rewritten(changes, [event[:cut], event[cut:]]))

    shown = json.loads(found.removeprefix(b"data: "))["choices"][0]["weight_versions"]
    assert shown == [each | {"run_id": "r"} for each in theirs]


# --- the other two dialects ---------------------------------------------------------------------

ALL = [
    {"version": "1", "start": 0, "end": 2},
    {"version": "2", "start": 2, "end": 5},
    {"version": "2", "start": 5, "end": 8},
]
RESPONSE = [
    ({"type": "response.created", "response": {"id": "r"}}, False),
    ({"type": "response.output_text.delta", "delta": '"type":"response.completed"'}, False),
    ({"type": "response.completed", "response": {"id": "r", "error": None}}, True),
]
CUT_OFF = [({"type": "response.incomplete", "response": {"id": "r", "error": None}}, True)]
MESSAGE = [
    ({"type": "message_start", "message": {"stop_reason": None}}, False),
    ({"type": "content_block_delta", "delta": {"text": 'stop_reason":"'}}, False),
    ({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}}, True),
    ({"type": "message_stop"}, False),
]
ABORTED_MESSAGE = [
    ({"type": "message_start", "message": {"stop_reason": None}}, False),
    ({"type": "message_delta", "delta": {"stop_reason": None}, "usage": {}}, True),
    ({"type": "message_stop"}, False),
]


@pytest.mark.parametrize(
    ("dialect", "events"),
    [
        (Dialect.RESPONSE, RESPONSE),
        (Dialect.RESPONSE, CUT_OFF),
        (Dialect.MESSAGE, MESSAGE),
        (Dialect.MESSAGE, ABORTED_MESSAGE),
    ],
)
def test_a_reply_without_choices_has_one_list_for_all_of_them(
    dialect: Dialect, events: list[tuple[Json, bool]]
) -> None:
    expected = b""
    for event, ends in events:
        out = json.loads(json.dumps(event))
        if ends:
            (out["response"] if dialect is Dialect.RESPONSE else out)["weight_versions"] = ALL
        expected += written(out, f"event: {event['type']}\n".encode())
    stream = b"".join(written(e, f"event: {e['type']}\n".encode()) for e, _ in events)
    labelled = {index: spans for index, spans in SPANS.items() if spans is not None}
    for cut in range(1, len(stream)):
        changes = Changes(Reply(dialect), tokens_of(labelled))
        assert b"".join(rewritten(changes, [stream[:cut], stream[cut:]])) == expected, cut


def test_a_reply_without_choices_has_no_spans_if_a_part_has_no_label() -> None:
    event = {"type": "response.completed", "response": {"id": "r"}}
    found = Changes(Reply(Dialect.RESPONSE), tokens_of()).events(written(event), last=True)

    assert json.loads(found[6:])["response"]["weight_versions"] is None


def test_a_failed_response_has_no_spans() -> None:
    event = {"type": "response.incomplete", "response": {"id": "r", "error": {"code": "x"}}}
    found = Changes(Reply(Dialect.RESPONSE), tokens_of()).events(written(event), last=True)

    assert found == written(event)


# --- whole replies ------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [b"[1]", b'"text"', b"null", b"7"])
def test_data_that_is_not_an_object_is_unchanged(body: bytes) -> None:
    assert Changes(Reply(), tokens_of()).whole(body) == body


def test_a_patch_sees_the_original_bytes_and_the_stamps_keep_it() -> None:
    body = b'{"choices": [{"index": 1, "x": "old"}]}'
    found = Changes(Reply(patch=lambda b: b.replace(b"old", b"new")), tokens_of()).whole(body)

    assert json.loads(found)["choices"] == [{"index": 1, "x": "new", "weight_versions": SHOWN[1]}]


@pytest.mark.parametrize("body", [b"no JSON", b"[]", b""])
def test_an_error_that_is_not_an_object_is_unchanged(body: bytes) -> None:
    reply = Reply(refusal=lambda refusal: {"said": refusal})

    assert Changes(reply, tokens_of()).refusal(body) == body


# --- through the whole of what sends ------------------------------------------------------------


class Outgoing:
    """A reply, message by message, and the client's view of it."""

    def __init__(self, tokens: Tokens, demand: Demand | None = None, **reply: Any) -> None:
        self.sent: list[Any] = []
        self.unlabelled = 0
        self.tokens = tokens
        self.stamping = Stamping(
            self.send,
            tokens,
            Reply(**reply),
            demand=demand or Demand(),
            order={WeightName(version): int(version) for version in "123"},
            on_unlabelled=self.count,
        )

    async def send(self, message: Any) -> None:
        self.sent.append(message)

    def count(self) -> None:
        self.unlabelled += 1

    async def start(self, kind: bytes = b"application/json", status: int = 200) -> None:
        headers = [(b"content-type", kind), (b"Content-Length", b"7"), (b"x-other", b"kept")]
        await self.stamping.send(
            {"type": "http.response.start", "status": status, "headers": headers}
        )

    async def body(self, body: bytes, *, more: bool) -> None:
        await self.stamping.send({"type": "http.response.body", "body": body, "more_body": more})

    @property
    def content(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent[1:])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])


STREAM = b"text/event-stream; charset=utf-8"


@settings(max_examples=50)
@given(st.lists(st.integers(1, 200), max_size=5))
async def test_a_whole_reply_is_the_same_in_any_number_of_pieces(cuts: list[int]) -> None:
    content = {"choices": [{"index": 0, "text": "é" * 40, "finish_reason": "stop"}]}
    pieces = pieces_of(json.dumps(content, ensure_ascii=False).encode(), cuts)
    out = Outgoing(tokens_of({0: SPANS[0]}))
    await out.start()
    for number, piece in enumerate(pieces):
        assert out.sent == [], "nothing goes out before all of it is known to be right"
        await out.body(piece, more=number + 1 < len(pieces))

    assert json.loads(out.content) == stamped(content)
    assert out.headers[b"content-length"] == str(len(out.content)).encode()
    assert b"Content-Length" not in out.headers, "there is only one length"
    assert out.headers[b"x-other"] == b"kept"
    assert out.headers[b"x-weight-version-start"] == b"1"
    assert out.headers[b"x-weight-version-end"] == b"2"


@pytest.mark.parametrize("status", [201, 204, 301, 404, 422, 500, 503])
async def test_an_error_reply_is_neither_stamped_nor_translated(status: int) -> None:
    out = Outgoing(tokens_of(), Demand(exact="9"), refusal=lambda _: {"not": "called"})
    await out.start(status=status)
    await out.body(b'{"choices":[{"index":0}]}', more=False)

    assert out.sent[0]["status"] == status
    assert out.content == b'{"choices":[{"index":0}]}'
    assert b"x-weight-version-start" not in out.headers


def failing(error: Exception) -> Callable[[Json], Json]:
    def change(_: Json) -> Json:
        raise error

    return change


@pytest.mark.parametrize(
    ("error", "status"),
    [
        pytest.param(WireError(500, "it does not fit"), 500, id="a reply that does not fit"),
        pytest.param(KeyError("a-secret"), 500, id="a mistake of ours"),
        pytest.param(RecursionError(), 500, id="a reply that is too deep"),
    ],
)
async def test_a_whole_reply_that_cannot_be_translated_is_an_error(
    error: Exception, status: int
) -> None:
    out = Outgoing(tokens_of(), whole=failing(error))
    await out.start()
    await out.body(b'{"choices":[{"index":0,"text":"secret"}]}', more=False)

    assert out.sent[0]["status"] == status
    assert json.loads(out.content)["error"]["code"] == status
    assert b"secret" not in out.content


@pytest.mark.parametrize("begun", [0, 1, 3])
async def test_a_stream_that_cannot_continue_ends_with_an_error(begun: int) -> None:
    calls = itertools.count()

    def chunk(content: Json) -> Json:
        if next(calls) == begun:
            raise KeyError("a-secret")
        return content

    out = Outgoing(tokens_of(), chunk=chunk)
    await out.start(STREAM)
    event = written({"choices": [{"index": 0, "finish_reason": None}]})
    for _ in range(begun):
        await out.body(event, more=True)
    with pytest.raises(CutShortError):
        await out.body(event, more=True)

    if begun == 0:
        assert out.sent[0]["status"] == 500
        assert json.loads(out.content)["error"]["code"] == 500
        return
    *events, error, done = out.content.removesuffix(b"\n\n").split(b"\n\n")
    assert len(events) == begun
    assert json.loads(error[6:])["error"]["code"] == 500
    assert done + b"\n\n" == DONE
    assert out.sent[-1]["more_body"] is False
    assert b"a-secret" not in out.content


VERSIONS = st.lists(st.sampled_from(["1", "2", "3"]), min_size=1, max_size=8)


@settings(max_examples=150)
@example(["1", "2"], Demand(exact="1"), 10**9)
@given(
    VERSIONS,
    st.sampled_from([Demand(exact="1"), Demand(exact="2"), Demand(at_least=2), Demand()]),
    st.integers(1, 60),
)
async def test_no_token_of_weights_other_than_the_demanded_ones_is_sent(
    versions: list[str], demand: Demand, cut: int
) -> None:
    """The weights may change before any token of a stream."""
    out = Outgoing(tokens_of({}), demand)
    out.tokens.first = WeightName(versions[0])
    await out.start(STREAM)
    good = list(itertools.takewhile(lambda v: demand.is_met_by(WeightName(v)), versions))
    was_cut = False
    for version in versions:
        out.tokens.change_weights(WeightName(version), None)
        event = written({"choices": [{"index": 0, "text": version, "finish_reason": None}]})
        try:
            for piece in (event[:cut], event[cut:]):
                if piece:
                    await out.body(piece, more=True)
        except CutShortError:
            was_cut = True
            break
    shown = [json.loads(e[6:]) for e in out.content.split(b"\n\n") if e.startswith(b"data: {")]

    assert was_cut is (len(good) < len(versions))
    assert [e["choices"][0]["text"] for e in shown if "choices" in e] == good
    if was_cut and good:
        assert shown[-1]["error"]["code"] == 409
        assert out.content.endswith(DONE)
    elif was_cut:
        assert out.sent[0]["status"] == 409
        assert out.headers[b"retry-after"] == b"1"


@pytest.mark.parametrize(
    ("demand", "spans"),
    [
        (Demand(exact="1"), [Span("1", 0, 1), Span("2", 1, 2), Span("1", 2, 3)]),
        (Demand(at_least=2), [Span("2", 0, 1), Span("1", 1, 2), Span("2", 2, 3)]),
        (Demand(exact="1"), None),
    ],
)
async def test_a_stream_that_was_merged_over_two_swaps_ends_with_an_error(
    demand: Demand, spans: list[Span] | None
) -> None:
    """vLLM merges what a slow client has not read; meanwhile a rollback brought the weights back."""
    out = Outgoing(tokens_of({}), demand)
    out.tokens.first = out.tokens.last = WeightName(spans[0].version if spans else "1")
    await out.start(STREAM)
    await out.body(written({"choices": [{"index": 0, "text": "good"}]}), more=True)
    out.tokens.spans, out.tokens.has_news = {0: spans}, True
    merged = written({"choices": [{"index": 0, "text": "bad", "finish_reason": "stop"}]})
    with pytest.raises(CutShortError):
        await out.body(merged, more=True)

    assert b"good" in out.content
    assert b"bad" not in out.content
    assert b'"code":409' in out.content


@pytest.mark.parametrize(
    ("spans", "announced", "unlabelled"),
    [
        ({0: [Span("1", 0, 2)]}, "1", 0),
        ({0: [Span("1", 0, 2), Span("2", 2, 3)]}, "1", 0),
        ({0: [Span("2", 0, 2)], 1: [Span("1", 0, 2)]}, "1", 0),
        pytest.param({0: [Span("2", 0, 2), Span("1", 2, 3)]}, "2", 0, id="over a rollback"),
        ({0: [Span("2", 0, 2)]}, "1", 1),
        ({0: [Span("1", 0, 2)]}, None, 1),
        ({0: None}, "1", 1),
        ({0: None, 1: None}, "1", 1),
        ({0: []}, "1", 0),
        ({}, None, 0),
    ],
)
async def test_a_missing_or_wrong_label_is_counted_once_a_reply(
    spans: Any, announced: str | None, unlabelled: int
) -> None:
    out = Outgoing(tokens_of(spans))
    out.tokens.first = announced and WeightName(announced)
    await out.start(STREAM)
    await out.body(written({"choices": []}), more=True)
    await out.body(DONE, more=False)

    assert out.unlabelled == unlabelled
    assert out.headers.get(b"x-weight-version-start") == (announced and announced.encode())


async def test_an_empty_stream_has_headers_and_an_end() -> None:
    out = Outgoing(tokens_of({}))
    await out.start(STREAM)
    assert out.sent == [], "which weights begin it is not known yet"
    await out.body(b"", more=False)

    assert [message["type"] for message in out.sent] == [
        "http.response.start",
        "http.response.body",
    ]
    assert out.sent[-1].get("more_body", False) is False


async def test_delayed_opening_events_of_a_response_keep_their_order() -> None:
    out = Outgoing(tokens_of({0: SPANS[0]}), dialect=Dialect.RESPONSE)
    out.tokens.first = None
    await out.start(STREAM)
    opening = [written({"type": f"response.{n}"}) for n in range(3)]
    for event in opening:
        await out.body(event, more=True)
    assert out.sent == []
    out.tokens.first = WeightName("1")
    await out.body(written({"type": "response.output_text.delta"}), more=True)

    assert out.headers[b"x-weight-version-start"] == b"1"
    assert out.content.startswith(b"".join(opening))


# --- tokens on their way from the engine --------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "has_media"),
    [
        ("text", False),
        ({"prompt_token_ids": [1]}, False),
        ({"prompt_token_ids": [1], "multi_modal_data": {}}, False),
        ({"prompt_token_ids": [1], "multi_modal_data": {"image": ["an image"]}}, True),
        ({"type": "multimodal", "prompt_token_ids": [1], "mm_hashes": {"image": ["a"]}}, True),
        ({"encoder_prompt": {"mm_kwargs": {"audio": [1]}}, "decoder_prompt": None}, True),
        ({"encoder_prompt": {"prompt_token_ids": [1]}, "decoder_prompt": "text"}, False),
        (SimpleNamespace(mm_features=["a feature"]), True),
        (SimpleNamespace(mm_features=None), False),
    ],
)
def test_a_prompt_with_images_is_known_in_each_form_of_vllm(
    prompt: Any, *, has_media: bool
) -> None:
    assert (
        Tokens(WeightNames(), lambda: None, KeptCache()).begin(prompt, None, "").has_media
        is has_media
    )


def output(index: int, count: int, **changes: Any) -> Any:
    choice = FakeChoice(index, token_ids=list(range(count)), **changes)
    return SimpleNamespace(outputs=[choice], num_cached_tokens=0, lora_request=None)


OUTPUTS = st.lists(
    st.dictionaries(st.integers(0, 2), st.booleans(), min_size=1, max_size=3), max_size=8
)
"""Choice → whether this output ends it. vLLM merges outputs that its server has not taken."""


@settings(max_examples=200)
@given(OUTPUTS, st.integers(1, 90))
async def test_each_choice_of_a_stream_gets_its_spans_in_the_event_that_ends_it(
    outputs: list[dict[int, bool]], cut: int
) -> None:
    left, steps = {0, 1, 2}, []
    for each in [*outputs, dict.fromkeys(left, True)]:
        steps.append({index: ends for index, ends in each.items() if index in left})
        left -= {index for index, ends in steps[-1].items() if ends}
    totals = {index: sum(index in step for step in steps) for index in range(3)}

    async def generate(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        for step in steps:
            choices = [
                FakeChoice(index, token_ids=[7])
                if not ends
                else FakeChoice(
                    index,
                    "stop",
                    [SimpleNamespace(version="1", start=0, end=totals[index])],
                    token_ids=[7],
                )
                for index, ends in step.items()
            ]
            yield SimpleNamespace(outputs=choices, num_cached_tokens=0, lora_request=None)

    names, sampling = WeightNames(), SimpleNamespace(n=3, output_kind=SimpleNamespace(name="DELTA"))
    with collecting(names, lambda: WeightName("1"), KeptCache()) as tokens:
        out = Outgoing(tokens)
        await out.start(STREAM)
        async for output in tracked(generate, names)({}, sampling, "x"):
            for choice in output.outputs:
                event = written(
                    {"choices": [{"index": choice.index, "finish_reason": choice.finish_reason}]}
                )
                for piece in pieces_of(event, [cut]):
                    await out.body(piece, more=True)
        await out.body(DONE, more=False)
    shown = [json.loads(e[6:]) for e in out.content.split(b"\n\n") if e.startswith(b"data: {")]
    choices = [event["choices"][0] for event in shown]

    assert len(choices) == sum(totals.values())
    assert {c["index"]: c["weight_versions"] for c in choices if c["finish_reason"]} == {
        index: [{"version": "1", "start": 0, "end": total}] for index, total in totals.items()
    }
    assert not any("weight_versions" in c for c in choices if not c["finish_reason"])
    assert not tokens.is_uneven


async def collected(outputs: list[Any], sampling: Any) -> Tokens:
    """The tokens of a request whose engine gives these outputs."""

    async def generate(*_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        for each in outputs:
            yield each

    names = WeightNames()
    with collecting(names, lambda: WeightName("1"), KeptCache()) as tokens:
        async for _ in tracked(generate, names)({}, sampling, "x"):
            pass
    return tokens


@settings(max_examples=100)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3)), max_size=8),
    st.integers(-1, 1),
    st.sampled_from(["DELTA", "CUMULATIVE"]),
)
async def test_a_choice_whose_labels_do_not_cover_its_tokens_is_counted(
    deltas: list[tuple[int, int]], missing: int, kind: str
) -> None:
    is_delta, totals, outputs = kind == "DELTA", {0: 0, 1: 0}, []
    for index, count in deltas:
        totals[index] += count
        outputs.append(output(index, count if is_delta else totals[index]))
    for index, total in totals.items():
        end = total + 1 + missing * (index == 1)
        span = SimpleNamespace(version="1", start=0, end=end)
        last = 1 if is_delta else total + 1
        outputs.append(output(index, last, finish_reason="stop", weight_versions=[span]))
    sampling = SimpleNamespace(n=2, output_kind=SimpleNamespace(name=kind))
    tokens = await collected(outputs, sampling)

    assert tokens.is_uneven is (missing != 0)
    assert set(tokens.spans) == {0, 1}
