"""Malformed requests to the public port: refused in OpenAI's format, or left to vLLM."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_server import ONE, FakeChoice, FakePort, FakeServer, ended, fake_facts
from tests.support.raw_call import RawCall
from tests.support.worker_harness import WorkerHarness

from fleet_worker.gateway.table import ROWS, Translations
from fleet_worker.http.asgi import WireError
from fleet_worker.provenance.spans import compact

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
TOKEN_CHAT, GENERATE = "/v1/chat/completions/tokens", "/inference/v1/generate"
PATHS = sorted({path for path, _, _ in ROWS})
DATA = ["/v1/messages", "/v1/responses", CHAT, COMPLETION, TOKEN_CHAT, GENERATE]


def raw(path: str, *pieces: bytes | None, headers: Any = (), method: str = "POST") -> RawCall:
    return RawCall(method, path, pieces, headers)


def error_of(call: RawCall) -> dict[str, Any]:
    """The error, which has the shape that OpenAI's clients parse."""
    error = call.body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == call.status
    assert int(call.header(b"content-length") or 0) == len(call.text)
    assert call.header(b"content-type") == b"application/json"
    return dict(error)


# --- requests of any shape ----------------------------------------------------------------------

LEAVES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 10**25, 0.5, -0.0, "", "5", "a", [], {}),
    *([5, 6], [[5], [6]], ["a"], [True], [-1], [10**9], [None], [{}]),
    *({"token_data": [5]}, {"extra_fields": ["engine_data"]}, {"prompt_token_ids": [5]}),
    *({"content": [{"type": "image_url"}]}, {"logprobs": 1}, {"cache_salt": ""}, {"x": []}),
)
KEYS = (
    *("add_generation_prompt", "add_special_tokens", "cache_salt", "chat_template_kwargs"),
    *("continue_final_message", "echo", "include_reasoning", "kv_transfer_params", "logprobs"),
    *("max_tokens", "messages", "model", "n", "nvext", "output_mode", "priority", "prompt"),
    *("prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "sampling_params"),
    *("routed_experts_prompt_start", "stream", "token_ids", "tokens", "truncate_prompt_tokens"),
)
VALID = {"tokens": [5], "token_ids": [5]}


def outcome(path: str, body: dict[str, Any], *, routes_experts: bool) -> int:
    """200 for what is sent on, otherwise the status of the refusal; anything else is a defect."""
    before = json.dumps(body)
    try:
        forward = Translations(fake_facts(routes_experts=routes_experts)).translate(path, body)
    except WireError as error:
        return error.status
    finally:
        assert json.dumps(body) == before, "the request is the sender's"
    if forward.body is not None:
        json.loads(compact(forward.body))
    return 200


@pytest.mark.parametrize("path", PATHS)
def test_any_value_of_a_key_is_passed_on_or_refused_with_4xx(path: str) -> None:
    for key, value, valid in itertools.product(KEYS, LEAVES, (VALID, {"tokens": [5]}, {})):
        for routes_experts in (False, True):
            body = {**valid, key: value}
            assert outcome(path, body, routes_experts=routes_experts) in (200, 400, 404), body


@settings(max_examples=200)
@given(
    st.sampled_from(PATHS),
    st.dictionaries(st.sampled_from(KEYS), st.sampled_from(LEAVES), max_size=6),
    st.sampled_from([VALID, {}]),
)
def test_no_combination_of_keys_answers_500(
    path: str, body: dict[str, Any], valid: dict[str, Any]
) -> None:
    assert outcome(path, {**valid, **body}, routes_experts=True) in (200, 400, 404)


EXPERTS = "routed_experts_prompt_start"


def among_parameters(value: Any) -> dict[str, Any]:
    return {"token_ids": [5], "sampling_params": {EXPERTS: value}}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, {"tokens": [5], "kv_transfer_params": [1]}, "kv_transfer_params"),
        (CHAT, {"tokens": [5], "kv_transfer_params": 7}, "kv_transfer_params"),
        (CHAT, {"nvext": {"token_data": [5]}, "kv_transfer_params": "x"}, "kv_transfer_params"),
        (CHAT, {EXPERTS: [5]}, EXPERTS),
        (COMPLETION, {"prompt": "a", EXPERTS: "a"}, EXPERTS),
        (GENERATE, among_parameters({"a": 1}), EXPERTS),
        (GENERATE, among_parameters(-1), EXPERTS),
    ],
)
def test_a_value_of_the_wrong_type_is_named(path: str, body: dict[str, Any], param: str) -> None:
    with pytest.raises(WireError) as refused:
        Translations(fake_facts(routes_experts=True)).translate(path, body)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert param in refused.value.message


@pytest.mark.parametrize("model", [["policy"], {"a": 1}, 7, True])
async def test_vllm_answers_an_invalid_model_name_even_with_a_demand(
    port: FakePort, model: Any
) -> None:
    port.server.refusal = {"error": {"message": "model: a text is wanted", "code": 400}}
    reply = await port.ask(headers={"x-weight-version-exact": "base"}, model=model, prompt="a")

    assert reply.status_code == 400
    assert port.server.asked[0][1]["model"] == model


BROKEN = [
    pytest.param(b"", id="nothing"),
    pytest.param(b"{", id="half an object"),
    pytest.param(b"[1, 2]", id="a list"),
    pytest.param(b"\xff\xfe", id="no text"),
    pytest.param(b'{"a": 1}{"b": 2}', id="two objects"),
    pytest.param(b"[" * 100_000, id="deeply nested"),
    pytest.param(b'{"max_tokens": ' + b"9" * 5000 + b"}", id="a number of 5,000 digits"),
]


@pytest.mark.parametrize("body", BROKEN)
async def test_a_body_that_is_not_an_object_is_passed_on_unchanged(
    port: FakePort, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    seen: list[tuple[str, bytes]] = []

    async def server(_: FakeServer, scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["path"], (await receive())["body"]))
        await send({"type": "http.response.start", "status": 400, "headers": []})
        await send({"type": "http.response.body", "body": b'{"error": {"message": "no JSON"}}'})

    monkeypatch.setattr(FakeServer, "__call__", server)
    for path in PATHS:
        half = len(body) // 2
        call = await raw(path, body[:half], body[half:]).to(port.app)
        assert call.status == 400
    assert seen == [(path, body) for path in PATHS]


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@settings(max_examples=100)
@given(TEXTS, st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_texts_reach_vllm_unchanged(text: str, metadata: dict[str, str]) -> None:
    body = {"messages": [{"role": "user", "content": text}], "metadata": metadata, "tokens": [5]}
    forward = Translations(fake_facts()).translate(CHAT, body)

    assert forward.body is not None
    sent = json.loads(compact(forward.body))
    assert sent["messages"] == body["messages"]
    assert sent["metadata"] == metadata


# --- bodies that do not come whole --------------------------------------------------------------


@pytest.mark.parametrize("begun", [[], [b""], [b'{"prompt":'], [b'{"prompt": "a"}', b""]])
async def test_a_client_that_disconnects_before_its_body_ends_is_dropped(
    port: FakePort, begun: list[bytes]
) -> None:
    for path in (*DATA, "/tokenize", "/v1/models"):
        call = await raw(path, *begun, None).to(port.app)

        assert call.sent == []
        assert port.server.asked == []
        assert port.agent.quiescence.inside == 0


async def test_a_body_over_the_limit_is_refused_in_openais_format(
    port: FakePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet_worker.gateway.gate.read_whole", limited_to(100))
    for pieces in ([b"x" * 101], [b"x" * 10] * 11):
        call = await raw(CHAT, *pieces).to(port.app)

        assert call.status == 413
        assert "100 bytes" in error_of(call)["message"]
        assert call.read == len(pieces), "it is read to its end, so that the answer arrives"
    assert port.server.asked == []
    assert port.agent.quiescence.inside == 0


def limited_to(limit: int) -> Any:
    from fleet_worker.gateway.gate import read_whole  # noqa: PLC0415 - is replaced later

    async def read(receive: Any) -> bytes:
        return await read_whole(receive, limit=limit)

    return read


@settings(max_examples=60)
@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=6))
async def test_a_body_is_the_same_in_any_pieces(body: bytes, cuts: list[int]) -> None:
    from fleet_worker.gateway.gate import read_whole  # noqa: PLC0415 - of this test only

    places = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    pieces = [body[a:b] for a, b in itertools.pairwise(places)]

    assert await read_whole(raw("/", *pieces).receive, limit=60) == body


# --- clients that go while they are answered ----------------------------------------------------


@pytest.mark.parametrize("messages", [0, 1, 2, 3])
async def test_a_client_that_disconnects_during_a_stream_releases_its_resources(
    port: FakePort, messages: int
) -> None:
    closed = 0

    async def endless(*_: Any, **__: Any) -> Any:
        nonlocal closed
        try:
            for _ in range(1000):
                yield output(FakeChoice(0))
        finally:
            closed += 1

    from fleet_worker.provenance.tracking import tracked  # noqa: PLC0415 - of this test only

    port.server.prompts, port.server.generate = [ONE], tracked(endless, port.agent.names)
    call = raw(COMPLETION, b'{"stream": true}')
    call.breaks_after = messages
    with pytest.raises(OSError, match="the client is gone"):
        await call.to(port.app)

    assert len(call.sent) == messages
    assert port.agent.quiescence.inside == 0
    assert port.server.closed == 1


def output(*choices: FakeChoice) -> Any:
    from types import SimpleNamespace  # noqa: PLC0415 - of this helper only

    return SimpleNamespace(outputs=choices, num_cached_tokens=0, lora_request=None)


async def test_concurrent_requests_do_not_mix_their_tokens(
    port: FakePort, serving: WorkerHarness
) -> None:
    import asyncio  # noqa: PLC0415 - of this test only

    async def one(number: int) -> Any:
        other = FakePort(serving.agent)
        other.server.prompts = [[[FakeChoice(0)], [ended(0, ("base", 0, number))]]]
        reply = await other.ask(stream=number % 2 == 0)
        await other.client.aclose()
        text = reply.text if number % 2 else reply.text.split("data: ")[2]
        return json.loads(text)["choices"][0]["weight_versions"][0]["end"]

    numbers = list(range(1, 21))
    assert await asyncio.gather(*map(one, numbers)) == numbers
    assert serving.agent.quiescence.inside == 0


# --- keys and headers ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([(b"Authorization", b"Bearer one")], 200),
        ([(b"AUTHORIZATION", b"BEARER one")], 200),
        ([(b"authorization", b"Bearer  one ")], 200),
        ([(b"authorization", b"Bearer ONE")], 401),
        ([(b"authorization", b"Bearer one\x00")], 401),
        ([(b"authorization", b"Bearer \xff")], 401),
        ([(b"x-api-key", b"one")], 401),
        ([(b"authorization", b"Bearer three"), (b"authorization", b"Bearer one")], 401),
        ([(b"cookie", b"authorization=Bearer one")], 401),
    ],
)
async def test_the_key_is_read_from_one_header(
    serving: WorkerHarness, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    port = FakePort(serving.agent, keys=("one", "two"))
    port.server.prompts = [ONE]
    call = await raw(COMPLETION, b"{}", headers=headers).to(port.app)

    assert call.status == status
    if status == 401:
        assert "one" not in error_of(call)["message"]
        assert call.read == 0, "a stranger's body is not read"
    await port.client.aclose()


@pytest.mark.parametrize(
    "path", ["/health/", "//health", "/health/../v1/models", "/livez/x", "/HEALTH", "/ping?a=1"]
)
async def test_only_the_exact_health_paths_need_no_key(serving: WorkerHarness, path: str) -> None:
    port = FakePort(serving.agent, keys=("one",))
    call = await RawCall("GET", "/x", headers=()).to(with_path(port, path))

    assert call.status == 401
    await port.client.aclose()


def with_path(port: FakePort, path: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await port.app({**scope, "path": path}, receive, send)

    return app


@pytest.mark.parametrize("name", [b"X-Weight-Version-Exact", b"x-weight-version-exact"])
async def test_a_demand_is_read_in_any_case_of_its_header(port: FakePort, name: bytes) -> None:
    call = await raw(COMPLETION, b"{}", headers=[(name, b"7")]).to(port.app)

    assert call.status == 409
    assert call.header(b"retry-after") == b"1"
    assert call.header(b"x-weight-version") == b"base"
    assert error_of(call)["type"] == "WeightVersionError"


@pytest.mark.parametrize("value", [b"", b" ", b"\xff\xfe", b"1" * 10_000])
async def test_a_demand_that_cannot_be_met_is_refused_before_the_engine_is_called(
    port: FakePort, value: bytes
) -> None:
    headers = [(b"x-weight-version-exact", value)]
    call = await raw(COMPLETION, b"{}", headers=headers).to(port.app)

    assert call.status == (400 if not value.strip() else 409)
    error_of(call)
    assert port.server.asked == []


async def test_the_body_of_an_info_route_is_unchanged(port: FakePort) -> None:
    """A GET has no tokens: the worker stamps nothing, whatever the body looks like."""
    call = await RawCall("GET", "/v1/models", headers=()).to(port.app)

    assert call.body == {"data": []}
    assert call.header(b"x-weight-version-start") is None
