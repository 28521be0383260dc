"""vLLM's application in small, behind the real gate: it says what a test tells it to say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from fleet_worker.checkpoint.identity import WeightNames
from fleet_worker.engine.facts import Facts
from fleet_worker.gateway.gate import Gate, GateKeeper, PublicKey
from fleet_worker.gateway.routes import stamps_itself
from fleet_worker.gateway.table import Translations
from fleet_worker.http.asgi import App, Receive, Scope, Send, answer_json, read_body
from fleet_worker.http.unauthenticated import Probes
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.lifecycle.worker import Worker
from fleet_worker.provenance.tracking import tracked


class FakeVocabulary:
    """Token i is the letter i of ASCII; from 128 on, one byte of a longer letter each."""

    def __init__(self, size: int = 256) -> None:
        self.size = size

    def knows(self, token_id: int) -> bool:
        return 0 <= token_id < self.size

    def bytes_of(self, token_id: int) -> bytes | None:
        return bytes([token_id]) if self.knows(token_id) else None


def fake_facts(**changes: Any) -> Facts:
    """Facts of a model with a context of 100 tokens and two ids without text."""
    known: dict[str, Any] = {
        "names": lambda: ("policy",),
        "max_length": 100,
        "id_limit": 258,
        "vocabulary": FakeVocabulary(),
        "generate_keys": frozenset(
            {
                "token_ids",
                "sampling_params",
                "model",
                "stream",
                "output_mode",
                "cache_salt",
                "priority",
                "return_token_ids",
            }
        ),
        "sampling_keys": frozenset(
            {
                "max_tokens",
                "logprobs",
                "routed_experts_prompt_start",
                "trace_decode_token_ids",
                "output_kind",
            }
        ),
    }
    return Facts(**(known | changes))


@dataclass
class FakeChoice:
    """vLLM's `CompletionOutput`, as far as the worker reads it."""

    index: int
    finish_reason: str | None = None
    weight_versions: list[SimpleNamespace] | None = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[object] | None = None


def ended(index: int, *spans: tuple[str, int, int]) -> FakeChoice:
    """A choice that ends with these spans."""
    named = [SimpleNamespace(version=v, start=s, end=e) for v, s, e in spans]
    return FakeChoice(index, "length", named, list(range(spans[-1][2] if spans else 0)))


Steps = list[list[FakeChoice]]
ONE: Steps = [[FakeChoice(0)], [ended(0, ("base", 0, 2))]]
"""Two outputs of one choice, of two tokens."""


async def fake_generate(
    prompt: Steps, _sampling: object, request_id: str, **options: Any
) -> AsyncGenerator[Any, None]:
    """An engine whose prompt is what it will say; of its own objects, as prompts come twice."""
    names, cached, adapter = (
        options.get("names"),
        options.get("cached", 0),
        options.get("adapter"),
    )
    lora = None if adapter is None else SimpleNamespace(lora_name=adapter)
    for choices in prompt:
        await asyncio.sleep(0)
        if callable(choices):
            await choices()
            continue
        outputs = [replace(choice, weight_versions=_labelled(choice, names)) for choice in choices]
        yield SimpleNamespace(
            outputs=outputs, request_id=request_id, num_cached_tokens=cached, lora_request=lora
        )


def _labelled(choice: FakeChoice, names: WeightNames | None) -> list[SimpleNamespace] | None:
    """The spans of a choice under the engine's labels: of the newest weights of each version."""
    if choice.weight_versions is None or names is None:
        return choice.weight_versions
    labels = {name.version: label for label, name in names._named.items()}
    return [
        SimpleNamespace(version=labels.get(s.version, s.version), start=s.start, end=s.end)
        for s in choice.weight_versions
    ]


class FakeServer:
    """Collects the engine's outputs and answers whole or as a stream.

    Fields:
        prompts: what the engine says, one a prompt.
        reply: the whole reply, or the events of a stream, instead of one made of the outputs.
        early: events of a stream that come before the engine's first output.
        refusal: the body of a 400, which every request gets.
        hold: what requests wait for before they reach the engine.
        cut: streams are sent in pieces of this length and the rest.
        asked: paths and bodies of the requests that came through.
        cached: prompt tokens that came out of the cache.
        adapter: the engine's name of the adapter that requests get.
    """

    def __init__(self, names: WeightNames | None = None) -> None:
        self.names = names or WeightNames()
        self.prompts: list[Steps] = []
        self.reply: Any = None
        self.early: list[Any] = []
        self.refusal: dict[str, Any] | None = None
        self.n = 1
        self.request_id = "cmpl-1-0"
        self.hold: asyncio.Event | None = None
        self.generate = tracked(fake_generate, self.names)
        self.cut = 10**9
        self.cached = 0
        self.adapter: str | None = None
        self.asked: list[tuple[str, Any]] = []
        self.closed = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await answer_json(send, 200, {"data": []})
            return
        body = json.loads(await read_body(receive, limit=10**9))
        self.asked.append((scope["path"], body))
        sampling = SimpleNamespace(
            n=self.n,
            output_kind=SimpleNamespace(name="DELTA" if body.get("stream") else "FINAL_ONLY"),
        )
        if self.hold is not None:
            await self.hold.wait()
        if self.refusal is not None:
            await answer_json(send, 400, self.refusal)
            return
        if body.get("fail"):
            await answer_json(send, 400, {"error": {"code": 400}})
            return
        # The order of the calls is the order of the prompts, as in vLLM.
        streams = [
            self.generate(
                p,
                sampling,
                self.request_id,
                names=self.names,
                cached=self.cached,
                adapter=self.adapter,
            )
            for p in self.prompts
        ]
        try:
            if body.get("stream"):
                sending = self._stream(streams, send, itself=stamps_itself(scope["path"]))
                await asyncio.create_task(sending)  # a task of its own, as Starlette makes one
                return
            last: list[Any] = [[output async for output in stream][-1] for stream in streams]
        except OSError:
            self.closed += 1
            raise
        itself = stamps_itself(scope["path"])
        choices = [
            {"index": number * self.n + choice.index} | _spans_of(choice, itself=itself)
            for number, output in enumerate(last)
            for choice in output.outputs
        ]
        reply = {"choices": choices} if self.reply is None else self.reply
        body = json.dumps(reply, separators=(",", ":"))  # as vLLM writes it
        await answer_json(send, 200, body.encode())

    async def _stream(
        self, streams: list[AsyncGenerator[Any, None]], send: Send, *, itself: bool
    ) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for event in self.early:
            body = event_bytes(event)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        events = list(self.reply or ())
        for number, stream in enumerate(streams):
            async for output in stream:
                sent = b"".join(event_bytes(e) for e in events[:1])
                events = events[1:]
                if self.reply is None:
                    for choice in output.outputs:
                        index = number * self.n + choice.index
                        event = {"index": index, "finish_reason": choice.finish_reason}
                        event |= _spans_of(choice, itself=itself)
                        sent += event_bytes({"choices": [event]})
                for piece in (sent[: self.cut], sent[self.cut :]):
                    if piece:
                        message = {"type": "http.response.body", "body": piece, "more_body": True}
                        await send(message)
        for event in events:
            body = event_bytes(event)
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


def _spans_of(choice: FakeChoice, *, itself: bool) -> dict[str, Any]:
    """As vLLM's own token route writes them."""
    if not itself or choice.weight_versions is None:
        return {}
    return {"weight_versions": [vars(span) for span in choice.weight_versions]}


def event_bytes(event: Any) -> bytes:
    """An event as vLLM sends it; bytes go as they are."""
    if isinstance(event, bytes):
        return event
    return b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"


class FakePort:
    """The gate in front of the server, and a client."""

    def __init__(
        self,
        agent: Worker,
        *,
        with_plugin: bool = True,
        keys: tuple[str, ...] = (),
        facts: Facts | None = None,
        names_no_runs: bool = False,
    ) -> None:
        self.agent, self.server, self.problem = agent, FakeServer(agent.names), None
        self.metrics = WorkerMetrics(CollectorRegistry())
        keeper = GateKeeper(
            agent,
            Probes(agent, lambda: self.problem),
            self.metrics,
            Translations(facts or fake_facts()),
            PublicKey(keys),
            names_no_runs,
        )
        state = SimpleNamespace(rlfleet=keeper) if with_plugin else SimpleNamespace()
        gate = Gate(self.server)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["app"] = SimpleNamespace(state=state)
            await gate(scope, receive, send)

        self.app: App = app
        self.client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://worker"
        )

    async def ask(
        self,
        path: str = "/v1/completions",
        headers: Mapping[str, str] | None = None,
        **body: Any,
    ) -> httpx.Response:
        return await self.client.post(path, json=body, headers=dict(headers or {}))

    def counted(self, name: str) -> float:
        value = self.metrics.registry.get_sample_value(f"rlfleet_worker_{name}_total")
        return float(value or 0)

    def unlabelled(self) -> float:
        return self.counted("unlabelled_replies")


__all__ = [
    "ONE",
    "FakeChoice",
    "FakePort",
    "FakeServer",
    "FakeVocabulary",
    "ended",
    "event_bytes",
    "fake_facts",
    "fake_generate",
]
