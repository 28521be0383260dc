"""Weight versions on every route, also those that vLLM does not have; demands on them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.engine.test_wire_tokens import (
    CHAT,
    COMPLETION,
    PLACEHOLDER,
    PROMPT,
    TOKEN_CHAT,
    TOOL,
    ask,
)
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, events_of

NewVersion = Callable[[], str]
Json = dict[str, Any]
LONG = 3000
"""Tokens of a request that still runs when a test has swapped the weights, also on a fast machine."""
MESSAGES = [{"role": "user", "content": "go"}]


def versions_in(reply: Json) -> list[list[Json]]:
    """The spans of a reply, choice by choice."""
    places = reply.get("choices") or [reply]
    return [place["weight_versions"] for place in places]


def last_versions_in(events: list[Json]) -> list[list[Json]]:
    """The spans in a stream, each of which comes where its tokens end."""
    found = []
    for event in events:
        places = [*event.get("choices", ()), event, event.get("response") or {}]
        found += [p["weight_versions"] for p in places if p.get("weight_versions")]
    return found


ROUTES = [
    pytest.param(
        TOKEN_CHAT, {"tokens": PROMPT, "ignore_eos": True}, "max_tokens", id="token route"
    ),
    pytest.param(
        CHAT,
        {"tokens": PROMPT, "messages": PLACEHOLDER, "ignore_eos": True},
        "max_tokens",
        id="tokens of a chat",
    ),
    pytest.param(
        CHAT,
        {"nvext": {"token_data": PROMPT}, "messages": PLACEHOLDER, "ignore_eos": True},
        "max_tokens",
        id="nvext",
    ),
    pytest.param(
        COMPLETION,
        {"nvext": {"token_data": PROMPT}, "ignore_eos": True},
        "max_tokens",
        id="nvext of a completion",
    ),
    pytest.param(
        "/v1/responses", {"input": "go", "min_tokens": 5}, "max_output_tokens", id="responses"
    ),
    pytest.param(
        "/v1/messages", {"messages": MESSAGES, "min_tokens": 5}, "max_tokens", id="messages"
    ),
    pytest.param(
        CHAT,
        {"messages": MESSAGES, "ignore_eos": True, "logprobs": True, "n": 2},
        "max_tokens",
        id="log-probabilities of two choices",
    ),
]
each_route = pytest.mark.parametrize(("path", "body", "limit"), ROUTES)


@each_route
def test_a_whole_reply_is_stamped_on_every_route(
    worker: WorkerProcess, home: str, path: str, body: Json, limit: str
) -> None:
    reply = ask(worker, path, **body, **{limit: 5})
    content = reply.json()

    for spans in versions_in(content):
        (span,) = spans
        assert (span["version"], span["start"]) == (home, 0)
        assert 0 < span["end"] <= 5
    assert reply.headers["x-weight-version-start"] == home
    assert reply.headers["x-weight-version-end"] == home


@each_route
def test_a_stream_is_stamped_on_every_route(
    worker: WorkerProcess, home: str, path: str, body: Json, limit: str
) -> None:
    reply = ask(worker, path, stream=True, **body, **{limit: 5})
    found = last_versions_in(events_of(reply.text))

    assert len(found) == body.get("n", 1)
    for spans in found:
        assert [span["version"] for span in spans] == [home]
    assert reply.headers["x-weight-version-start"] == home


def test_a_batch_is_stamped_conversation_by_conversation(worker: WorkerProcess, home: str) -> None:
    body = {"messages": [MESSAGES, MESSAGES, MESSAGES], "max_tokens": 4, "logprobs": True}
    reply = ask(worker, "/v1/chat/completions/batch", **body).json()

    assert len(reply["choices"]) == 3
    for choice in reply["choices"]:
        assert choice["weight_versions"][-1]["end"] == len(choice["logprobs"]["content"])


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_reply_with_tool_calls_is_stamped(
    worker: WorkerProcess, home: str, one_call: dict[str, float], stream: bool
) -> None:
    body = {
        "messages": MESSAGES,
        "tools": [TOOL],
        "tool_choice": "required",
        "logit_bias": one_call,
        "max_tokens": 100,
    }
    reply = ask(worker, CHAT, **body, stream=stream)
    found = last_versions_in(events_of(reply.text)) if stream else versions_in(reply.json())

    ((span,),) = found
    assert (span["version"], span["start"]) == (home, 0)
    assert span["end"] > 10


@contextmanager
def swap_in_the_middle(
    worker: WorkerProcess, weights: Weights, version: str
) -> Iterator[Callable[[], None]]:
    """Stage a version, and swap to it on a signal, with tokens made before and after."""
    worker.stage(version, weights.b)

    def swap() -> None:
        worker.wait_until_generating()
        worker.must("pause", mode="keep", lease_seconds=60)
        worker.must("load", version=version)
        worker.must("resume", version=version)

    yield swap


def test_a_stream_ends_where_other_weights_than_demanded_continue(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    body = {"model": "policy", "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True}
    body |= {"stream": True, "return_token_ids": True}
    headers = {"x-weight-version-exact": home}
    replies: list[httpx.Response] = []
    with swap_in_the_middle(worker, weights, new_version()) as swap:
        thread = threading.Thread(
            target=lambda: replies.append(
                worker.public.post(COMPLETION, json=body, headers=headers)
            )
        )
        thread.start()
        swap()
        thread.join(timeout=REPLY_SECONDS)

    *events, last = events_of(replies[0].text)
    assert replies[0].status_code == 200
    assert last["error"]["code"] == 409
    assert 0 < sum(len(e["choices"][0]["token_ids"]) for e in events) < LONG
    # The engine stopped, too.
    eventually(lambda: worker.state()["requests_running"] == 0)


def test_errors_carry_no_stamps(worker: WorkerProcess, home: str) -> None:
    for path, body in ((TOKEN_CHAT, {"tokens": [9999]}), ("/v1/responses", {"input": 5})):
        reply = ask(worker, path, **body)
        assert reply.status_code == 400
        assert "x-weight-version-start" not in reply.headers
        assert "weight_versions" not in reply.text


@pytest.mark.long
def test_a_kept_cache_shows_in_the_spans_of_whatever_reads_it(
    driven: WorkerProcess, weights: Weights
) -> None:
    """As prime-rl does it: the cache is kept over the load, and salts keep new requests apart."""
    before = driven.state()["version"]
    prompt = list(range(10, 110))  # long enough to be found in the cache again

    def spans_of(salt: str, **options: Any) -> list[Json]:
        body = {"prompt": prompt, "cache_salt": salt, "ignore_eos": True, "max_tokens": 4}
        reply = ask(driven, COMPLETION, **{**body, **options})
        assert reply.status_code == 200, reply.text
        (spans,) = versions_in(reply.json())
        return spans

    def control(path: str, body: Json | None = None) -> None:
        reply = driven.admin.post(path, json=body)
        assert reply.status_code == 200, reply.text

    assert spans_of("one") == [driven.span(0, 4)]
    running: list[list[Json]] = []
    thread = threading.Thread(target=lambda: running.append(spans_of("one", max_tokens=LONG)))
    thread.start()
    driven.wait_until_generating()
    control("/pause?mode=keep&clear_cache=false")
    control("/update_weights", {"weight_dir": str(weights.b)})
    control("/resume")
    thread.join(timeout=REPLY_SECONDS)
    after = driven.state()["version"]

    (first, second) = running[0]
    assert (first["version"], first.get("kv_from")) == (before, None)
    assert (second["version"], second["kv_from"]) == (after, before)
    (found,) = spans_of("one")
    assert (found["version"], found["kv_from"]) == (after, before)
    (apart,) = spans_of("two")
    assert apart == driven.span(0, 4), "nothing in the cache was its own"
    control("/reset_prefix_cache")
    (clean,) = spans_of("one")
    assert clean == driven.span(0, 4)
