"""Every completion says which weights made which of its tokens, on every route."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.selection import others_long
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, events_of, token_request

NewVersion = Callable[[], str]
Body = dict[str, Any]
LONG = 3000
"""Tokens of a request that still runs when a test has swapped the weights, also on a fast machine."""

_CHAT: Body = {
    "model": "policy",
    "messages": [{"role": "user", "content": "go"}],
    "ignore_eos": True,
}
_COMPLETION: Body = {"model": "policy", "prompt": [1, 2, 3], "ignore_eos": True}


def _chat(**options: Any) -> tuple[str, Body]:
    return "/v1/chat/completions", {**_CHAT, **options}


def _completion(**options: Any) -> tuple[str, Body]:
    return "/v1/completions", {**_COMPLETION, **options}


def _tokens(*, stream: bool = False, **sampling: Any) -> tuple[str, Body]:
    return "/inference/v1/generate", {**token_request([1, 2, 3], **sampling), "stream": stream}


ROUTES = [
    pytest.param(_tokens, 1, id="generate"),
    pytest.param(_tokens, 3, id="generate, three choices"),
    pytest.param(_completion, 1, id="completions"),
    pytest.param(_completion, 3, id="completions, three choices"),
    pytest.param(_chat, 1, id="chat"),
    pytest.param(_chat, 3, id="chat, three choices"),
]
Route = Callable[..., tuple[str, Body]]


@pytest.mark.parametrize(("route", "n"), ROUTES)
def test_a_whole_reply_carries_spans_in_each_choice_and_both_headers(
    worker: WorkerProcess, home: str, route: Route, n: int
) -> None:
    path, body = route(max_tokens=5, n=n)
    reply = worker.public.post(path, json=body)

    choices = reply.json()["choices"]
    assert [c["weight_versions"] for c in choices] == [[worker.span(0, 5)]] * n
    assert reply.headers["x-weight-version-start"] == home
    assert reply.headers["x-weight-version-end"] == home
    assert int(reply.headers["content-length"]) == len(reply.content)


@pytest.mark.parametrize(("route", "n"), ROUTES)
def test_a_stream_carries_the_spans_on_the_last_chunk_of_each_choice(
    worker: WorkerProcess, home: str, route: Route, n: int
) -> None:
    path, body = route(max_tokens=5, n=n, stream=True)
    reply = worker.public.post(path, json=body)

    assert reply.headers["x-weight-version-start"] == home
    assert "x-weight-version-end" not in reply.headers
    ends = _ends(reply)
    assert sorted(ends) == list(range(n))
    assert all(spans == [worker.span(0, 5)] for spans in ends.values())
    assert reply.text.rstrip().endswith("data: [DONE]")


def test_several_prompts_keep_the_order_of_their_choices(worker: WorkerProcess, home: str) -> None:
    path, body = _completion(prompt=[[1], [2], [3]], n=2, max_tokens=4)
    choices = worker.public.post(path, json=body).json()["choices"]

    assert [choice["index"] for choice in choices] == list(range(6))
    assert all(c["weight_versions"] == [worker.span(0, 4)] for c in choices)


def test_spans_end_where_a_stop_string_cuts_the_tokens_off(
    worker: WorkerProcess, home: str
) -> None:
    path, body = _completion(max_tokens=40, temperature=0, return_token_ids=True)
    text = worker.public.post(path, json=body).json()["choices"][0]["text"]
    middle = text[len(text) // 2 :][:3]
    choice = worker.public.post(path, json={**body, "stop": [middle]}).json()["choices"][0]

    assert choice["finish_reason"] == "stop"
    assert choice["weight_versions"][-1]["end"] == len(choice["token_ids"])


EVERY_TIME = {"generate, whole", "completions, three choices, streamed", "chat, streamed"}
OVER_A_SWAP = [
    pytest.param(*route.values, stream, id=f"{route.id}, {way}")
    for route in ROUTES
    for stream, way in ((False, "whole"), (True, "streamed"))
]


@pytest.mark.parametrize(("route", "n", "stream"), others_long(EVERY_TIME, OVER_A_SWAP))
def test_a_reply_over_a_swap_names_both_versions_and_where_the_one_ends(
    worker: WorkerProcess,
    weights: Weights,
    home: str,
    new_version: NewVersion,
    route: Route,
    n: int,
    stream: bool,
) -> None:
    worker.stage(version := new_version(), weights.b)
    path, body = route(max_tokens=LONG, n=n, stream=stream)
    with _running(worker, path, body, requests=n) as replies:
        worker.must("pause", mode="keep", lease_seconds=60)
        worker.must("load", version=version)
        worker.must("resume", version=version)

    ends = _ends(replies[0]) if stream else _whole(replies[0])
    assert sorted(ends) == list(range(n))
    for spans in ends.values():
        first, second = spans
        assert (first["version"], first["start"]) == (home, 0)
        assert (second["version"], second["end"]) == (version, LONG)
        assert 0 < first["end"] == second["start"] < LONG
    assert replies[0].headers["x-weight-version-start"] == home
    assert replies[0].headers.get("x-weight-version-end") == (None if stream else version)


def test_a_stream_that_is_held_over_a_swap_is_announced_as_what_makes_its_first_token(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    worker.stage(version := new_version(), weights.b)
    worker.must("pause", mode="keep", lease_seconds=60)
    path, body = _chat(max_tokens=5, stream=True)
    with _running(worker, path, body, requests=1) as replies:
        worker.must("load", version=version)
        worker.must("resume", version=version)

    assert replies[0].headers["x-weight-version-start"] == version
    assert _ends(replies[0]) == {0: [worker.span(0, 5)]}


def _messages(**options: Any) -> tuple[str, Body]:
    return "/v1/messages", {"model": "policy", "messages": _CHAT["messages"], **options}


def _responses(*, max_tokens: int, **options: Any) -> tuple[str, Body]:
    body = {"model": "policy", "input": "go", "max_output_tokens": max_tokens, "ignore_eos": True}
    return "/v1/responses", body | options


@pytest.fixture(scope="session")
def endless(weights: Weights) -> Path:
    """Weights with which no greedy reply ends by itself. `/v1/messages` has no `ignore_eos`."""
    checkpoint = copy_of(weights.a, weights.endless)
    end = json.loads((checkpoint / "config.json").read_text())["eos_token_id"]

    def silence(tensors: damage.Tensors) -> None:
        dtype, shape, data = tensors["lm_head.weight"]
        row = len(data) // shape[0]
        # The logit of this token is 0, and never the largest one.
        silenced = data[: end * row] + bytes(row) + data[(end + 1) * row :]
        tensors["lm_head.weight"] = dtype, shape, silenced

    damage.edit_tensors(checkpoint, silence)
    return checkpoint


@pytest.mark.parametrize("route", [_tokens, _completion, _chat, _messages, _responses])
def test_a_stream_that_is_aborted_carries_the_spans_of_its_tokens(
    worker: WorkerProcess, endless: Path, new_version: NewVersion, route: Route
) -> None:
    version = new_version()
    worker.swap(version, endless)
    path, body = route(max_tokens=LONG, stream=True, temperature=0)
    with _running(worker, path, body, requests=1) as replies:
        worker.must("pause", mode="abort", lease_seconds=60)

    assert replies[0].headers["x-weight-version-start"] == version
    found = [spans for event in events_of(replies[0].text) for spans in _spans_in(event)]
    ((span,),) = found
    assert (span["version"], span["start"]) == (version, 0)
    assert 0 < span["end"] < LONG


def test_no_route_gives_a_reply_without_tokens(worker: WorkerProcess, home: str) -> None:
    """All places are taken, so none of these requests has a token when the pause ends them."""
    path, body = _tokens(max_tokens=LONG, n=16)
    routes = [_tokens, _completion, _chat, _messages, _responses]
    asked = [route(max_tokens=5, stream=stream) for route in routes for stream in (False, True)]
    with ExitStack() as running:
        running.enter_context(_running(worker, path, body, requests=16))
        worker.wait_until_generating(16)
        waiting = [
            running.enter_context(_running(worker, *each, requests=17 + number, begun=False))
            for number, each in enumerate(asked)
        ]
        worker.must("pause", mode="abort", lease_seconds=60)

    found = [(reply.status_code, reply.headers.get("retry-after")) for (reply,) in waiting]
    assert found == [(429, "1")] * len(asked)
    assert all(reply.json()["error"]["type"] == "RequestEndedError" for (reply,) in waiting)


def _spans_in(value: Any) -> Iterator[Any]:
    """All lists of spans in an event, at any depth."""
    if isinstance(value, dict):
        if value.get("weight_versions") is not None:
            yield value["weight_versions"]
        for each in value.values():
            yield from _spans_in(each)
    elif isinstance(value, list):
        for each in value:
            yield from _spans_in(each)


def test_a_rollback_in_the_middle_of_a_reply_keeps_the_first_version_in_the_header(
    worker: WorkerProcess, weights: Weights, new_version: NewVersion
) -> None:
    first, second = new_version(), new_version()
    worker.swap(first, weights.b)
    path, body = _tokens(max_tokens=LONG)
    with _running(worker, path, body, requests=1) as replies:
        worker.swap(second, weights.c)
        worker.swap(first, weights.b)

    spans = replies[0].json()["choices"][0]["weight_versions"]
    assert spans[0]["version"] == first
    assert second in {span["version"] for span in spans}
    assert replies[0].headers["x-weight-version-start"] == first
    assert replies[0].headers["x-weight-version-end"] == spans[-1]["version"]


def test_errors_pass_as_they_are(worker: WorkerProcess, home: str) -> None:
    too_long = worker.public.post("/v1/completions", json={**_COMPLETION, "max_tokens": 10**6})
    unknown = worker.public.post("/v1/completions", json={**_COMPLETION, "model": "other"})

    assert (too_long.status_code, unknown.status_code) == (400, 404)
    assert "error" in too_long.json()


def test_no_reply_was_ever_without_a_label(worker: WorkerProcess) -> None:
    assert worker.metric("rlfleet_worker_unlabelled_replies_total") == 0


@contextmanager
def _running(
    worker: WorkerProcess, path: str, body: Body, *, requests: int, begun: bool = True
) -> Iterator[list[httpx.Response]]:
    """A request in flight while the block runs; its reply is there when the block has ended.

    `begun`: it has tokens when the block begins, unless the worker is paused.
    """
    replies: list[httpx.Response] = []
    thread = threading.Thread(target=lambda: replies.append(worker.public.post(path, json=body)))

    def is_inside() -> bool:
        state = worker.state()
        return int(state["requests_running"]) + int(state["requests_held"]) == requests

    thread.start()
    eventually(is_inside)
    if begun and worker.state()["phase"] == "serving":
        worker.wait_until_generating(requests)
    yield replies
    thread.join(timeout=REPLY_SECONDS)
    assert replies, worker.log_tail()


def _whole(reply: httpx.Response) -> dict[int, Any]:
    return {c["index"]: c["weight_versions"] for c in reply.json()["choices"]}


def _ends(reply: httpx.Response) -> dict[int, Any]:
    """Choice → spans of a stream, which must be exactly on the chunks that end a choice."""
    ends: dict[int, Any] = {}
    for event in events_of(reply.text):
        for choice in event.get("choices", []):
            if choice.get("finish_reason") is not None:
                assert choice["index"] not in ends
                ends[choice["index"]] = choice["weight_versions"]
            else:
                assert choice.get("weight_versions") is None
    return ends


def test_two_runs_that_count_alike_make_two_spans_in_one_reply(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    """A run that is begun again counts from 0, and its first swap may come under a request."""
    version = new_version()
    digests = []

    def swap(run: str, path: Path) -> None:
        worker.stage(version, path, run_id=run)
        worker.must("pause", mode="keep", lease_seconds=60)
        worker.must("load", version=version, run_id=run)
        state = worker.must("resume", version=version, run_id=run)
        digests.append(state["digest"].removeprefix("sha256:")[:12])

    swap("run-7", weights.b)
    path, body = _tokens(max_tokens=LONG)
    with _running(worker, path, body, requests=1) as replies:
        swap("run-8", weights.c)

    (reply,) = replies
    first, second = reply.json()["choices"][0]["weight_versions"]
    assert (first["version"], first["run_id"], first["digest"]) == (version, "run-7", digests[0])
    assert (second["version"], second["run_id"], second["digest"]) == (version, "run-8", digests[1])
    assert 0 < first["end"] == second["start"] < second["end"] == LONG
    assert reply.headers["x-weight-run-start"] == "run-7"
    assert reply.headers["x-weight-digest-end"] == digests[1]
    demand = {"x-weight-run": "run-7", "x-weight-version-min": "0"}
    assert worker.public.post(path, json=body, headers=demand).status_code == 409
    assert f"{version}@" not in reply.text
