"""The public port's outermost layer, in front of a small application."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support.fake_server import ONE, FakeChoice, FakePort, ended, fake_generate
from tests.support.tiny import BASE_DIGEST
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness

from fleet_worker.checkpoint.identity import WeightName, WeightNames
from fleet_worker.gateway.gate import Gate
from fleet_worker.gateway.translate import generate
from fleet_worker.http.asgi import Receive, Scope, Send
from fleet_worker.lifecycle.kept_cache import KeptCache
from fleet_worker.provenance.tracking import collecting, tracked

BASE = {"version": "base", "digest": BASE_DIGEST}


def ends_of(reply: httpx.Response) -> dict[int, Any]:
    found = {}
    for line in reply.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                if "weight_versions" in choice:
                    found[choice["index"]] = choice["weight_versions"]
    return found


async def test_a_whole_reply_is_stamped(port: FakePort) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask()

    assert reply.json()["choices"] == [
        {"index": 0, "weight_versions": [{**BASE, "start": 0, "end": 2}]}
    ]
    assert reply.headers["x-weight-version-start"] == "base"
    assert reply.headers["x-weight-version-end"] == "base"


async def test_choices_of_several_prompts_have_their_own_spans(port: FakePort) -> None:
    port.server.n = 2
    port.server.prompts = [
        [[ended(0, ("base", 0, 1)), ended(1, ("base", 0, 2))]],
        [[ended(0, ("base", 0, 3)), ended(1, ("base", 0, 4))]],
    ]
    choices = (await port.ask()).json()["choices"]

    assert [c["weight_versions"][0]["end"] for c in choices] == [1, 2, 3, 4]


@pytest.mark.parametrize("cut", [1, 7, 30, 10**9])
async def test_each_choice_of_a_stream_is_stamped_at_its_end(port: FakePort, cut: int) -> None:
    port.server.n = 2
    port.server.cut = cut
    port.server.prompts = [
        [[FakeChoice(0), FakeChoice(1)], [ended(1, ("base", 0, 1))], [ended(0, ("base", 0, 2))]]
    ]
    reply = await port.ask(stream=True)

    assert {index: spans[0]["end"] for index, spans in ends_of(reply).items()} == {0: 2, 1: 1}
    assert reply.headers["x-weight-version-start"] == "base"
    assert "x-weight-version-end" not in reply.headers
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.text.count("data: ") == 5


@pytest.mark.parametrize("cut", [1, 60, 10**9])
@pytest.mark.parametrize("breaks_at", [None, 2, 3])
async def test_each_event_of_a_token_stream_names_its_tokens_or_the_stream_ends_with_an_error(
    port: FakePort, monkeypatch: pytest.MonkeyPatch, cut: int, breaks_at: int | None
) -> None:
    rewrite = generate._named

    def named(entry: re.Match[bytes]) -> bytes:
        if breaks_at is not None and int(entry[1]) == breaks_at:
            raise ValueError(entry[1])
        return rewrite(entry)

    monkeypatch.setattr(generate, "_named", named)
    entries = [{"content": [{"token_id": number, "logprob": -1.0}]} for number in range(5)]
    port.server.reply = [{"choices": [{"index": 0, "logprobs": each}]} for each in entries]
    port.server.prompts = [[*[[FakeChoice(0)]] * 5, [ended(0, ("base", 0, 2))]]]
    port.server.cut = cut
    sampling = {"logprobs": 1}
    path = "/inference/v1/generate"
    reply = await port.ask(path, token_ids=[1], sampling_params=sampling, stream=True)

    found = re.findall(r'"token_id":(\d),"token":"token_id:(\d)"', reply.text)
    assert found == [(str(n), str(n)) for n in range(5 if breaks_at is None else breaks_at)]
    assert ('"error"' in reply.text) == (breaks_at is not None)
    assert reply.text.endswith("data: [DONE]\n\n")


async def test_the_header_of_a_stream_names_the_version_of_its_first_token(
    port: FakePort, serving: WorkerHarness
) -> None:
    port.server.prompts = [[[FakeChoice(0)], [ended(0, ("1", 0, 2))]]]
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask(stream=True))
    await soon(lambda: serving.agent.quiescence.inside != 0)
    await serving.swap("1")
    port.server.hold.set()
    reply = await asking

    assert reply.headers["x-weight-version-start"] == "1"
    assert port.unlabelled() == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_unlabelled_tokens_are_counted_and_get_no_version(
    port: FakePort, stream: bool
) -> None:
    port.server.prompts = [[[FakeChoice(0, "length", None)]]]
    reply = await port.ask(stream=stream)

    assert port.unlabelled() == 1
    assert "x-weight-version-end" not in reply.headers
    found = ends_of(reply) if stream else {0: reply.json()["choices"][0]["weight_versions"]}
    assert found == {0: None}


@pytest.mark.parametrize("stream", [False, True])
async def test_spans_of_the_token_route_are_replaced(port: FakePort, stream: bool) -> None:
    port.server.n = 2
    port.server.prompts = [[[FakeChoice(0)], [ended(0, ("base", 0, 2)), ended(1, ("base", 0, 3))]]]
    reply = await port.ask(
        "/inference/v1/generate", token_ids=[1], sampling_params={}, stream=stream
    )

    choices = reply.json()["choices"] if not stream else []
    found = ends_of(reply) if stream else {c["index"]: c["weight_versions"] for c in choices}
    assert found == {0: [{**BASE, "start": 0, "end": 2}], 1: [{**BASE, "start": 0, "end": 3}]}
    assert reply.headers["x-weight-version-start"] == "base"
    assert reply.headers["x-weight-digest-start"] == BASE_DIGEST


async def test_an_error_of_the_engine_is_passed_on(port: FakePort) -> None:
    reply = await port.ask(fail=True)

    assert (reply.status_code, reply.json()) == (400, {"error": {"code": 400}})
    assert "x-weight-version-start" not in reply.headers


async def test_beam_search_is_refused(port: FakePort) -> None:
    port.server.prompts = [ONE]
    port.server.request_id = "cmpl-1-0f-beam-3"
    with pytest.raises(ValueError, match="beam search"):
        await port.ask()


async def test_a_cancelled_reply_closes_the_engines_stream() -> None:
    closed = asyncio.Event()

    async def endless(*_: object, **__: object) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield SimpleNamespace(
                    outputs=[FakeChoice(0)], num_cached_tokens=0, lora_request=None
                )
        finally:
            closed.set()

    names = WeightNames()
    with collecting(names, lambda: WeightName("1"), KeptCache()):
        stream = tracked(endless, names)([], None, "x")
        await anext(stream)
        await stream.aclose()
    assert closed.is_set()


@pytest.mark.parametrize("follows", [False, True])
async def test_a_stream_follows_the_weights_of_its_tokens_only_if_the_reply_demands_some(
    *, follows: bool
) -> None:
    async def many(*_: object, **__: object) -> AsyncGenerator[Any, None]:
        for _ in range(5):
            yield SimpleNamespace(outputs=[FakeChoice(0)], num_cached_tokens=0, lora_request=None)

    names, asked = WeightNames(), list[WeightName]()

    def name() -> WeightName:
        asked.append(WeightName(str(len(asked))))
        return asked[-1]

    with collecting(names, name, KeptCache(), follows=follows) as tokens:
        async for _ in tracked(many, names)([], None, "x"):
            pass
    assert asked == [WeightName(str(n)) for n in range(5 if follows else 1)]
    assert (tokens.first, tokens.last) == (asked[0], asked[-1])


async def test_an_engine_label_never_leaves_the_worker() -> None:
    names = WeightNames()
    label = names.label_of(WeightName("base", "run-7", "3fa9c1d04b2e"), "3fa9c1d04b2e")
    stream = tracked(fake_generate, names)([[ended(0, (label, 0, 2))]], None, "x")

    (output,) = [output async for output in stream]
    assert [vars(span) for span in output.outputs[0].weight_versions] == [
        {"version": "base", "start": 0, "end": 2}
    ]


@pytest.mark.parametrize(
    ("finish_reason", "drained", "stop_reason"),
    [("abort", True, "drained"), ("abort", False, None), ("stop", True, None)],
)
async def test_a_request_aborted_after_a_drain_has_its_own_finish_reason(
    finish_reason: str, *, drained: bool, stop_reason: str | None
) -> None:
    names = WeightNames()
    label = names.label_of(WeightName("base"), None)
    choice = ended(0, (label, 0, 2))
    choice.finish_reason, choice.stop_reason = finish_reason, None

    async def one(*_: object, **__: object) -> AsyncGenerator[Any, None]:
        yield SimpleNamespace(outputs=[choice], num_cached_tokens=0, lora_request=None)

    with collecting(names, lambda: WeightName("base"), KeptCache()):
        stream = tracked(one, names, is_drained=lambda: drained)([], None, "x")
        (output,) = [output async for output in stream]
    assert output.outputs[0].finish_reason == finish_reason
    assert output.outputs[0].stop_reason == stop_reason


async def test_a_closed_latch_refuses_data_requests(port: FakePort, serving: WorkerHarness) -> None:
    await serving.fence()
    reply = await port.ask()

    assert reply.status_code == 429
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["connection"] == "close", "the next try reaches another worker"
    assert reply.json()["error"] == {
        "message": "this worker is joining",
        "type": "WorkerClosedError",
        "param": None,
        "code": 429,
    }
    assert (await port.client.get("/v1/models")).status_code == 200
    assert (await port.client.get("/readyz")).status_code == 503
    assert port.counted("turned_away_requests") == 1


async def test_a_dead_engine_refuses_with_503_which_routers_count_as_a_failure(
    port: FakePort, serving: WorkerHarness
) -> None:
    await serving.fence()
    port.problem = "the engine is dead"
    reply = await port.ask()

    assert (reply.status_code, reply.headers["retry-after"]) == (503, "1")
    assert reply.json()["error"]["message"] == "the engine is dead"


async def test_a_refused_request_is_read_before_its_connection_closes(
    port: FakePort, serving: WorkerHarness
) -> None:
    """A connection that is closed on unread bytes loses the answer."""
    await serving.fence()
    read: list[bytes] = []

    async def body() -> AsyncGenerator[bytes, None]:
        for piece in (b'{"model": ', b'"policy"}'):
            read.append(piece)
            yield piece

    reply = await port.client.post("/v1/completions", content=body())

    assert (reply.status_code, reply.headers["connection"]) == (429, "close")
    assert read == [b'{"model": ', b'"policy"}']


async def test_a_request_counts_until_its_reply_has_been_sent(
    port: FakePort, serving: WorkerHarness
) -> None:
    port.server.prompts = [ONE]
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask())
    await soon(lambda: serving.agent.quiescence.inside != 0)
    port.server.hold.set()
    await asking
    assert serving.agent.quiescence.inside == 0
    with pytest.raises(json.JSONDecodeError):
        await port.client.post("/v1/completions", content=b"{")
    assert serving.agent.quiescence.inside == 0


@pytest.mark.parametrize("phase", ["paused", "loading"])
async def test_a_pause_of_any_length_keeps_the_worker_ready_so_that_its_sessions_stay(
    port: FakePort, serving: WorkerHarness, phase: str
) -> None:
    answered: list[int] = []

    async def asks(*_: Any) -> None:
        answered.append((await port.client.get("/readyz")).status_code)

    await serving.stage("1")
    await asks()
    await serving.pause()
    await asks()
    if phase == "loading":
        await serving.load("1")
        await asks()
    await serving.resume("1" if phase == "loading" else "base")
    await asks()

    assert set(answered) == {200}


async def test_sessions_are_counted_by_header_and_by_body(
    port: FakePort, serving: WorkerHarness
) -> None:
    port.server.prompts = [ONE]
    assert serving.state.sessions == 0
    await port.ask(headers={"X-Session-ID": "a"})
    await port.ask(headers={"x-session-id": "a"})
    await port.ask(session_params={"session_id": "b"})
    assert serving.state.sessions == 2

    await port.ask()
    for odd in ([], {"session_id": 7}, {"session_id": ""}, {}, None):
        await port.ask(session_params=odd)
    assert serving.state.sessions == 2, "these requests name no session"


async def test_a_request_that_is_refused_begins_no_session(
    port: FakePort, serving: WorkerHarness
) -> None:
    await serving.fence()
    await port.ask(headers={"X-Session-ID": "a"})

    assert serving.state.sessions == 0


async def test_an_unlisted_path_is_404(port: FakePort) -> None:
    for path in ("/pause", "/v1/load_lora_adapter", "/v1/worker/state", "/new/route"):
        assert (await port.client.post(path)).status_code == 404


async def test_without_the_plugin_every_request_is_refused(serving: WorkerHarness) -> None:
    port = FakePort(serving.agent, with_plugin=False)
    port.server.prompts = [ONE]
    for path in ("/v1/completions", "/v1/models", "/readyz", "/health"):
        assert (await port.client.post(path, json={})).status_code == 503
    await port.client.aclose()


async def test_web_sockets_are_closed(port: FakePort) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await port.app({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_lifespan_messages_are_passed_on() -> None:
    seen: list[Scope] = []

    async def server(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    nothing: Callable[..., Any] = lambda *_: None  # noqa: E731 - is never called
    await Gate(server)({"type": "lifespan"}, nothing, nothing)
    assert len(seen) == 1


async def test_a_prompt_with_a_lone_surrogate_is_passed_on(port: FakePort) -> None:
    port.server.prompts = [ONE]
    body = b'{"prompt": "\\ud83d", "logprobs": 0, "return_token_ids": true}'
    await port.client.post("/v1/completions", content=body)

    assert port.server.asked[0][1]["prompt"] == "\ud83d"


async def test_vllms_error_about_a_full_context_is_translated(port: FakePort) -> None:
    port.server.refusal = {"error": {"message": "max_tokens must be at least 1, got 0."}}
    reply = await port.ask(prompt="long")

    assert reply.status_code == 400
    assert "maximum context length" in reply.json()["error"]["message"]
    assert int(reply.headers["content-length"]) == len(reply.content)
