"""The public port's outermost layer, in front of a small application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.runtime.metrics import WorkerMetrics
from fleet_worker.wire.asgi import App, Receive, Scope, Send, answer, answer_json, read_body
from fleet_worker.wire.probes import Probes
from fleet_worker.wire.public.gate import Gate, GateKeeper
from fleet_worker.wire.public.tracking import tracked


@dataclass
class Choice:
    """As much of vLLM's `CompletionOutput` as is looked at."""

    index: int
    finish_reason: str | None = None
    weight_versions: list[SimpleNamespace] | None = None


def ended(index: int, *spans: tuple[str, int, int]) -> Choice:
    named = [SimpleNamespace(version=v, start=s, end=e) for v, s, e in spans]
    return Choice(index, "length", named)


Steps = list[list[Choice]]


async def generate(
    prompt: Steps, _sampling: object, request_id: str, **_options: object
) -> AsyncGenerator[Any, None]:
    """An engine whose prompt is what it will say."""
    for choices in prompt:
        await asyncio.sleep(0)
        yield SimpleNamespace(outputs=choices, request_id=request_id)


class Server:
    """vLLM in small: collects the engine's outputs and answers whole or as a stream."""

    def __init__(self) -> None:
        self.prompts: list[Steps] = []
        self.n = 1
        self.request_id = "cmpl-1-0"
        self.hold: asyncio.Event | None = None
        self.generate = tracked(generate)
        self.cut = 10**9

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/v1/models":
            await answer_json(send, 200, {"data": []})
            return
        body = json.loads(await read_body(receive, limit=10**6))
        sampling = SimpleNamespace(n=self.n)
        if self.hold is not None:
            await self.hold.wait()
        if body.get("fail"):
            await answer_json(send, 400, {"error": {"code": 400}})
            return
        # The order of the calls is the order of the prompts, as in vLLM.
        streams = [self.generate(p, sampling, self.request_id) for p in self.prompts]
        if body.get("stream"):
            await self._stream(streams, send)
            return
        last: list[Any] = [[output async for output in stream][-1] for stream in streams]
        choices = [
            {"index": number * self.n + choice.index}
            for number, output in enumerate(last)
            for choice in output.outputs
        ]
        await answer_json(send, 200, {"choices": choices})

    async def _stream(self, streams: list[AsyncGenerator[Any, None]], send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent = b""
        for number, stream in enumerate(streams):
            async for output in stream:
                for choice in output.outputs:
                    index = number * self.n + choice.index
                    event = {"index": index, "finish_reason": choice.finish_reason}
                    encoded = json.dumps({"choices": [event]}, separators=(",", ":"))
                    sent += f"data: {encoded}\n\n".encode()
                for piece in (sent[: self.cut], sent[self.cut :]):
                    if piece:
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await send(message)
                sent = b""
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


class Port:
    """The gate in front of the server, and a client."""

    def __init__(self, bench: Bench, *, with_plugin: bool = True) -> None:
        self.bench, self.server, self.problem = bench, Server(), None
        keeper = GateKeeper(
            bench.agent,
            Probes(bench.agent, lambda: self.problem),
            WorkerMetrics(_OtherRegistry()),
        )
        self.metrics = keeper.metrics
        state = SimpleNamespace(rlfleet=keeper) if with_plugin else SimpleNamespace()
        gate = Gate(self.server)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"] = SimpleNamespace(state=state)
            await gate(scope, receive, send)

        self.app: App = app
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://worker"
        )

    async def ask(self, *, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        return await self.client.post(path, json=body)

    def unlabelled(self) -> float:
        value = self.metrics.registry.get_sample_value("rlfleet_worker_unlabelled_replies_total")
        return float(value or 0)


def _OtherRegistry() -> Any:  # noqa: N802 - stands for a class
    from prometheus_client import CollectorRegistry  # noqa: PLC0415 - of this helper only

    return CollectorRegistry()


@pytest.fixture
async def port(serving: Bench) -> AsyncIterator[Port]:
    made = Port(serving)
    yield made
    await made.client.aclose()


ONE = [[Choice(0)], [ended(0, ("base", 0, 2))]]


def ends_of(reply: httpx.Response) -> dict[int, Any]:
    found = {}
    for line in reply.text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                if "weight_versions" in choice:
                    found[choice["index"]] = choice["weight_versions"]
    return found


async def test_a_whole_reply_is_stamped(port: Port) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask()

    assert reply.json()["choices"] == [
        {"index": 0, "weight_versions": [{"version": "base", "start": 0, "end": 2}]}
    ]
    assert reply.headers["x-weight-version-start"] == "base"
    assert reply.headers["x-weight-version-end"] == "base"


async def test_choices_of_several_prompts_are_told_apart(port: Port) -> None:
    port.server.n = 2
    port.server.prompts = [
        [[ended(0, ("base", 0, 1)), ended(1, ("base", 0, 2))]],
        [[ended(0, ("base", 0, 3)), ended(1, ("base", 0, 4))]],
    ]
    choices = (await port.ask()).json()["choices"]

    assert [c["weight_versions"][0]["end"] for c in choices] == [1, 2, 3, 4]


@pytest.mark.parametrize("cut", [1, 7, 30, 10**9])
async def test_a_stream_is_stamped_where_its_choices_end_however_it_is_cut(
    port: Port, cut: int
) -> None:
    port.server.n = 2
    port.server.cut = cut
    port.server.prompts = [
        [[Choice(0), Choice(1)], [ended(1, ("base", 0, 1))], [ended(0, ("base", 0, 2))]],
    ]
    reply = await port.ask(stream=True)

    assert {index: spans[0]["end"] for index, spans in ends_of(reply).items()} == {0: 2, 1: 1}
    assert reply.headers["x-weight-version-start"] == "base"
    assert "x-weight-version-end" not in reply.headers
    assert reply.text.endswith("data: [DONE]\n\n")
    assert reply.text.count("data: ") == 5


async def test_a_stream_is_announced_as_what_made_its_first_token(port: Port) -> None:
    port.server.prompts = [[[Choice(0)], [ended(0, ("1", 0, 2))]]]
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask(stream=True))
    await soon(lambda: port.bench.agent.quiescence.inside != 0)
    await port.bench.stage("1")
    await port.bench.pause()
    await port.bench.load("1")
    await port.bench.resume("1")
    port.server.hold.set()
    reply = await asking

    assert reply.headers["x-weight-version-start"] == "1"
    assert port.unlabelled() == 0


async def test_a_stream_that_was_announced_wrongly_is_counted(port: Port) -> None:
    port.server.prompts = [[[ended(0, ("other", 0, 2))]]]
    await port.ask(stream=True)

    assert port.unlabelled() == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_without_a_label_are_counted_and_never_given_one(
    port: Port,
    stream: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    port.server.prompts = [[[Choice(0, "length", None)]]]
    reply = await port.ask(stream=stream)

    assert port.unlabelled() == 1
    assert "x-weight-version-end" not in reply.headers
    found = ends_of(reply) if stream else {0: reply.json()["choices"][0]["weight_versions"]}
    assert found == {0: None}


async def test_the_token_route_stamps_itself_and_only_gets_headers(port: Port) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask(path="/inference/v1/generate")

    assert reply.json() == {"choices": [{"index": 0}]}
    assert reply.headers["x-weight-version-end"] == "base"


async def test_an_error_passes_as_it_is(port: Port) -> None:
    reply = await port.ask(fail=True)

    assert (reply.status_code, reply.json()) == (400, {"error": {"code": 400}})
    assert "x-weight-version-start" not in reply.headers


async def test_beam_search_is_refused(port: Port) -> None:
    port.server.prompts = [ONE]
    port.server.request_id = "cmpl-1-0f-beam-3"
    with pytest.raises(ValueError, match="beam search"):
        await port.ask()


async def test_a_reply_that_is_given_up_closes_the_engines_stream() -> None:
    closed = asyncio.Event()

    async def endless(*_: object, **__: object) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield SimpleNamespace(outputs=[Choice(0)])
        finally:
            closed.set()

    from fleet_worker.wire.public.tracking import collecting  # noqa: PLC0415 - of this test only

    with collecting(lambda: "1"):
        stream = tracked(endless)([], None, "x")
        await anext(stream)
        await stream.aclose()
    assert closed.is_set()


async def test_outside_of_a_request_nothing_is_watched() -> None:
    stream = tracked(generate)(ONE, None, "x")

    assert not hasattr(stream, "__wrapped__")
    assert len([output async for output in stream]) == 2


async def test_a_closed_latch_turns_data_requests_away(port: Port) -> None:
    await port.bench.fence()
    reply = await port.ask()

    assert reply.status_code == 503
    assert reply.headers["retry-after"] == "1"
    assert reply.json()["error"] == {
        "message": "this worker is joining",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }
    assert (await port.client.get("/v1/models")).status_code == 200
    assert (await port.client.get("/readyz")).status_code == 503
    registry = port.metrics.registry
    assert registry.get_sample_value("rlfleet_worker_turned_away_requests_total") == 1


async def test_a_paused_worker_takes_requests_in(port: Port) -> None:
    await port.bench.pause()
    port.server.prompts = [ONE]

    assert (await port.ask()).status_code == 200


async def test_requests_inside_are_counted_until_their_reply_is_out(port: Port) -> None:
    port.server.prompts = [ONE]
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask())
    await soon(lambda: port.bench.agent.quiescence.inside != 0)
    port.server.hold.set()
    await asking
    assert port.bench.agent.quiescence.inside == 0
    with pytest.raises(json.JSONDecodeError):
        await port.client.post("/v1/completions", content=b"{")
    assert port.bench.agent.quiescence.inside == 0


async def test_what_is_not_on_the_list_is_not_there(port: Port) -> None:
    for path in ("/pause", "/v1/load_lora_adapter", "/v1/worker/state", "/new/route"):
        assert (await port.client.post(path)).status_code == 404


async def test_without_the_plugin_nothing_passes(serving: Bench) -> None:
    port = Port(serving, with_plugin=False)
    port.server.prompts = [ONE]
    for path in ("/v1/completions", "/v1/models", "/readyz", "/health"):
        assert (await port.client.post(path, json={})).status_code == 503
    await port.client.aclose()


async def test_web_sockets_are_closed(port: Port) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await port.app({"type": "websocket", "path": "/v1/realtime", "headers": []}, receive, send)
    assert sent == [{"type": "websocket.close", "code": 1008}]


async def test_the_life_span_of_the_server_passes() -> None:
    seen: list[Scope] = []

    async def server(scope: Scope, _receive: Receive, _send: Send) -> None:
        seen.append(scope)

    nothing: Callable[..., Any] = lambda *_: None  # noqa: E731 - is never called
    await Gate(server)({"type": "lifespan"}, nothing, nothing)
    assert len(seen) == 1


async def test_a_body_has_a_limit_and_what_is_over_it_is_thrown_away() -> None:
    from fleet_worker.wire.asgi import BodyTooLargeError  # noqa: PLC0415 - of this test only

    pieces = [b"x" * 60] * 5

    async def receive() -> Any:
        piece = pieces.pop()
        return {"type": "http.request", "body": piece, "more_body": bool(pieces)}

    with pytest.raises(BodyTooLargeError):
        await read_body(receive, limit=100)
    assert pieces == [], "the rest was read, so that the answer arrives"


async def test_plain_answers_say_how_long_they_are() -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    await answer(send, 200, b"alive", b"text/plain")
    assert (b"content-length", b"5") in sent[0]["headers"]
