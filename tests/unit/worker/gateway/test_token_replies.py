"""Replies with token ids through the whole public port."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.support.fake_server import ONE, FakeChoice, FakePort, ended
from tests.support.tiny import BASE_DIGEST

CHAT, TOKEN_CHAT, COMPLETION = (
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/v1/completions",
)
ENGINE_DATA = {"nvext": {"token_data": [5, 6], "extra_fields": ["engine_data"]}}

BASE = {"version": "base", "digest": BASE_DIGEST}


def entries(*ids: int, logprob: float | None = -0.5) -> dict[str, Any]:
    return {"content": [{"token": f"token_id:{i}", "logprob": logprob} for i in ids]}


def chat(ids: Any = (97, 98), prompt: Any = (5, 6), **changes: Any) -> dict[str, Any]:
    """A chat's reply with ids, as vLLM gives it."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "ab"},
        "logprobs": entries(*ids) if ids is not None else None,
        "finish_reason": "stop",
        "stop_reason": 98,
        "token_ids": None if ids is None else list(ids),
    }
    reply = {
        "choices": [choice],
        "usage": {"completion_tokens": len(ids or ()), "prompt_tokens": 2},
        "prompt_token_ids": None if prompt is None else list(prompt),
        "prompt_logprobs": [None, {"6": {"logprob": -1.0}}],
    }
    choice.update(changes.pop("choice", {}))
    return reply | changes


async def ask(port: FakePort, reply: Any, path: str = CHAT, **body: Any) -> httpx.Response:
    port.server.prompts, port.server.reply = [ONE], reply
    return await port.ask(path, messages=[{"role": "user", "content": ""}], **body)


async def test_the_token_route_returns_ids_and_the_prompt_that_was_sent(port: FakePort) -> None:
    reply = (await ask(port, chat(), TOKEN_CHAT, tokens=[5, 6], logprobs=True)).json()

    assert reply["prompt_token_ids"] == [5, 6]
    (choice,) = reply["choices"]
    assert choice["token_ids"] == [97, 98]
    assert [(e["token_id"], e["token"]) for e in choice["logprobs"]["content"]] == [
        (97, "a"),
        (98, "b"),
    ]
    assert choice["weight_versions"] == [{**BASE, "start": 0, "end": 2}]


async def test_a_client_gets_only_the_fields_it_asked_for(port: FakePort) -> None:
    only_logprobs = (await ask(port, chat(), tokens=[5, 6], logprobs=True)).json()
    only_ids = (await ask(port, chat(), tokens=[5, 6], return_token_ids=True)).json()

    assert only_logprobs["prompt_token_ids"] is None
    assert only_logprobs["choices"][0]["token_ids"] is None
    assert only_logprobs["choices"][0]["logprobs"] is not None
    assert only_ids["choices"][0]["token_ids"] == [97, 98]
    assert only_ids["choices"][0]["logprobs"] is None


async def test_nvext_returns_the_engines_data_and_changes_nothing_else(port: FakePort) -> None:
    reply = (await ask(port, chat(), **ENGINE_DATA)).json()

    assert reply["nvext"]["engine_data"] == {
        "completion_token_ids": [97, 98],
        "completion_logprobs": [-0.5, -0.5],
        "prompt_token_ids": [5, 6],
        "routed_experts": None,
    }
    assert reply["choices"][0]["logprobs"] is None
    assert reply["choices"][0]["token_ids"] is None


async def test_every_field_of_nvext_can_be_requested(port: FakePort) -> None:
    fields = [
        "completion_token_ids",
        "prompt_token_ids",
        "prompt_logprobs",
        "stop_reason",
        "routed_experts",
        "timing",
    ]
    nvext = {"token_data": [5, 6], "extra_fields": fields}
    found = (await ask(port, chat(), nvext=nvext, prompt_logprobs=1)).json()["nvext"]

    assert found.pop("timing")["total_time_ms"] >= 0
    assert found == {
        "completion_token_ids": [97, 98],
        "prompt_token_ids": [5, 6],
        "prompt_logprobs": [None, {"6": {"logprob": -1.0}}],
        "stop_reason": 98,
        "routed_experts": None,
    }


async def test_nvext_without_fields_is_not_answered(port: FakePort) -> None:
    assert "nvext" not in (await ask(port, chat(), nvext={"token_data": [5, 6]})).json()


async def test_nvext_of_a_completion_reads_its_lists(port: FakePort) -> None:
    lists = {"tokens": ["token_id:97"], "token_logprobs": [None], "top_logprobs": [None]}
    choice = {"index": 0, "token_ids": [97], "prompt_token_ids": [5, 6], "logprobs": lists}
    reply = {"choices": [choice], "usage": {"completion_tokens": 1}}
    port.server.prompts, port.server.reply = [ONE], reply
    data = (await port.ask(COMPLETION, **ENGINE_DATA)).json()["nvext"]["engine_data"]

    assert data["completion_token_ids"] == [97]
    assert data["completion_logprobs"] == [0.0], "an entry without a value keeps its place"
    assert data["prompt_token_ids"] == [5, 6]


async def test_a_null_log_probability_keeps_its_position(port: FakePort) -> None:
    reply = chat(choice={"logprobs": entries(97, 98, logprob=None)})
    data = (await ask(port, reply, **ENGINE_DATA)).json()["nvext"]["engine_data"]

    assert data["completion_logprobs"] == [0.0, 0.0]


async def test_a_completion_without_tokens_has_empty_lists(port: FakePort) -> None:
    reply = chat(ids=(), choice={"logprobs": {"content": []}})
    data = (await ask(port, reply, **ENGINE_DATA)).json()["nvext"]["engine_data"]

    assert (data["completion_token_ids"], data["completion_logprobs"]) == ([], [])


BROKEN = [
    pytest.param(chat(ids=None), id="no ids"),
    pytest.param(chat(prompt=None), id="no prompt"),
    pytest.param(chat(prompt=[5, 7]), id="another prompt"),
    pytest.param(chat(choice={"logprobs": entries(97)}), id="a log-probability too few"),
    pytest.param(chat(choice={"logprobs": entries(97, 99)}), id="those of another token"),
    pytest.param(chat(choice={"logprobs": None}), id="no log-probabilities"),
    pytest.param(chat(usage={"completion_tokens": 3}), id="a usage of other tokens"),
    pytest.param(chat(choice={"logprobs": {"content": [{}, {}]}}), id="entries of nothing"),
]


@pytest.mark.parametrize("reply", BROKEN)
async def test_an_inconsistent_reply_is_an_error(port: FakePort, reply: Any) -> None:
    answer = await ask(port, reply, **ENGINE_DATA)

    assert answer.status_code == 500
    assert answer.json()["error"]["type"] == "InternalServerError"
    assert "choices" not in answer.json()


@pytest.mark.parametrize(
    "choice",
    [
        pytest.param(
            FakeChoice(0, "length", ended(0, ("base", 0, 2)).weight_versions, [1, 2], [0]),
            id="log-probabilities of fewer tokens",
        ),
        pytest.param(
            FakeChoice(0, "length", ended(0, ("base", 0, 2)).weight_versions, [1]),
            id="labels of more tokens",
        ),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_lists_of_the_engine_that_do_not_match_are_an_error(
    port: FakePort, choice: FakeChoice, stream: bool
) -> None:
    port.server.prompts = [[[FakeChoice(0)], [choice]]]
    answer = await port.ask(stream=stream)

    assert answer.status_code == (200 if stream else 500)
    assert "InternalServerError" in answer.text
    assert b"weight_versions" not in answer.content


async def test_tokens_of_a_stream_are_counted_over_its_events(port: FakePort) -> None:
    port.server.prompts = [
        [
            [FakeChoice(0, token_ids=[1])],
            [FakeChoice(0, token_ids=[2, 3])],
            [FakeChoice(0, "length", ended(0, ("base", 0, 3)).weight_versions)],
        ]
    ]
    assert "weight_versions" in (await port.ask(stream=True)).text


def chunk(*ids: int, ends: bool = False, **changes: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": {"content": "a"},
        "logprobs": entries(*ids),
        "finish_reason": "stop" if ends else None,
        "token_ids": list(ids),
    }
    return {"choices": [choice | changes]}


def opening(*prompt: int) -> dict[str, Any]:
    choice = {"index": 0, "delta": {"role": "assistant"}, "logprobs": None, "finish_reason": None}
    return {"choices": [choice], "prompt_token_ids": list(prompt)}


def events_of(reply: httpx.Response) -> list[Any]:
    written = [line for line in reply.text.splitlines() if line.startswith("data: ")]
    lines = [line.removeprefix("data: ") for line in written]
    return [json.loads(line) if line != "[DONE]" else line for line in lines]


USAGE = {"choices": [], "usage": {"completion_tokens": 3}}


async def test_a_token_stream_is_named_and_stamped_like_a_whole_reply(port: FakePort) -> None:
    stream = [opening(5, 6), chunk(97), chunk(98, 0xE2, ends=True), USAGE]
    reply = await ask(port, stream, TOKEN_CHAT, tokens=[5, 6], stream=True, logprobs=True)
    first, second, third, usage, done = events_of(reply)

    assert first["prompt_token_ids"] == [5, 6]
    assert second["choices"][0]["token_ids"] == [97]
    content = third["choices"][0]["logprobs"]["content"]
    assert [(e["token_id"], e["token"]) for e in content] == [(98, "b"), (0xE2, r"\xe2")]
    assert third["choices"][0]["weight_versions"] == [{**BASE, "start": 0, "end": 2}]
    assert usage["usage"]["completion_tokens"] == 3
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("stream", "good"),
    [
        pytest.param([opening(5, 7), chunk(97, ends=True)], 0, id="another prompt"),
        pytest.param([opening(5, 6), chunk(97, logprobs=entries(98))], 1, id="another token"),
        pytest.param([opening(5, 6), chunk(97, ends=True, token_ids=None)], 1, id="no ids"),
        pytest.param([opening(5, 6), chunk(97, ends=True), USAGE], 2, id="another usage"),
    ],
)
async def test_an_inconsistent_stream_ends_with_an_error(
    port: FakePort, stream: list[Any], good: int
) -> None:
    reply = await ask(port, stream, TOKEN_CHAT, tokens=[5, 6], stream=True, logprobs=True)

    if good == 0:
        assert reply.status_code == 500
        return
    *events, error, done = events_of(reply)
    assert len(events) == good
    assert error["error"]["code"] == 500
    assert done == "[DONE]"


async def test_hidden_reasoning_stays_hidden_without_an_error(port: FakePort) -> None:
    hidden = chat(ids=None, usage={"completion_tokens": 7})
    reply = await ask(port, hidden, logprobs=True, include_reasoning=False)

    assert reply.status_code == 200
    assert reply.json()["choices"][0]["logprobs"] is None


async def test_each_reply_of_a_batch_is_named(port: FakePort) -> None:
    reply = await ask(port, chat(), "/v1/chat/completions/batch", logprobs=True)

    assert reply.json()["choices"][0]["logprobs"]["content"][1]["token_id"] == 98


GENERATED = {
    "choices": [
        {
            "index": 0,
            "token_ids": [97],
            "logprobs": {
                "content": [
                    {
                        "token_id": 97,
                        "logprob": -0.5,
                        "top_logprobs": [{"token_id": 97, "logprob": -0.5}],
                    }
                ]
            },
        }
    ]
}


def as_vllm_writes(content: Any) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def test_log_probabilities_of_generate_are_named_by_id() -> None:
    from tests.support.fake_server import fake_facts  # noqa: PLC0415 - of this test only

    from fleet_worker.gateway.translate.generate import reply_of  # noqa: PLC0415 - of this test only

    reply = reply_of({"sampling_params": {"logprobs": 1}}, fake_facts())
    assert reply.patch is not None
    entry = json.loads(reply.patch(as_vllm_writes(GENERATED)))["choices"][0]["logprobs"]["content"]

    assert (entry[0]["token"], entry[0]["token_id"]) == ("token_id:97", 97)
    assert entry[0]["top_logprobs"][0]["token"] == "token_id:97"
    text = as_vllm_writes({"a": '{"token_id":97,'})
    assert reply.patch(text) == text, "what stands in a string is left alone"


async def test_generate_without_log_probabilities_is_only_stamped(port: FakePort) -> None:
    port.server.prompts, port.server.reply = [ONE], GENERATED
    reply = await port.ask("/inference/v1/generate", token_ids=[1], sampling_params={})

    (choice,) = GENERATED["choices"]
    stamped = {**choice, "weight_versions": [{**BASE, "start": 0, "end": 2}]}
    assert reply.json() == {**GENERATED, "choices": [stamped]}


async def test_generate_with_text_output_names_its_tokens(port: FakePort) -> None:
    entry = {"token": "", "logprob": -0.5, "bytes": []}
    choice = {"index": 0, "token_ids": [0xE2], "logprobs": {"content": [entry]}}
    port.server.prompts, port.server.reply = [ONE], {"choices": [choice]}
    reply = await port.ask(
        "/inference/v1/generate", token_ids=[1], sampling_params={"logprobs": 0}, output_mode="text"
    )

    (named,) = reply.json()["choices"][0]["logprobs"]["content"]
    assert (named["token"], named["token_id"], named["bytes"]) == (r"\xe2", 0xE2, [0xE2])


@pytest.mark.parametrize("names", [["token_id:97"], ["token_id:97", "token_id:99"]])
async def test_a_completion_whose_lists_are_for_other_tokens_is_an_error(
    port: FakePort, names: list[str]
) -> None:
    lists = {
        "tokens": names,
        "token_logprobs": [-0.5] * len(names),
        "top_logprobs": [None] * len(names),
    }
    choice = {"index": 0, "token_ids": [97, 98], "logprobs": lists}
    port.server.prompts, port.server.reply = [ONE], {"choices": [choice]}

    assert (await port.ask(COMPLETION, logprobs=0)).status_code == 500
    echoed = await port.ask(COMPLETION, logprobs=0, echo=True)
    assert echoed.status_code == 200, "with the prompt before them there are more"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_echo_with_log_probabilities_has_the_text_of_the_prompt(
    port: FakePort, stream: bool
) -> None:
    lists = {
        "tokens": ["token_id:97", "token_id:98", "token_id:99"],
        "token_logprobs": [None, -0.5, -0.5],
        "top_logprobs": [None] * 3,
    }
    choice = {"index": 0, "text": "abc", "token_ids": None, "logprobs": lists}
    usage = {"prompt_tokens": 2, "completion_tokens": 1}
    reply = {"choices": [choice], "usage": usage}
    port.server.prompts, port.server.reply = [ONE], [reply] if stream else reply
    answer = await port.ask(COMPLETION, logprobs=0, echo=True, stream=stream)

    found = events_of(answer)[0] if stream else answer.json()
    (named,) = found["choices"]
    assert named["text"] == "abc"
    assert named["logprobs"]["tokens"] == ["a", "b", "c"]
    assert named["logprobs"]["text_offset"] == [0, 1, 2]


@pytest.mark.parametrize("count", [0, 2])
async def test_engine_data_without_exactly_one_choice_is_an_error(
    port: FakePort, count: int
) -> None:
    reply = chat() | {"choices": chat()["choices"] * count}
    found = await ask(port, reply, **ENGINE_DATA)

    assert found.status_code == 500
    assert f"{count} choices" in found.json()["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt_token_ids": None}, "prompt"),
        ({"choice": {"logprobs": None}}, "log-probabilities"),
        ({"choice": {"token_ids": None}}, "token ids"),
    ],
)
async def test_nvext_omits_what_the_engine_did_not_return(
    port: FakePort, changes: dict[str, Any], what: str
) -> None:
    nvext = {"extra_fields": ["engine_data"]}
    found = await ask(port, chat(**changes), nvext=nvext, tokens=None)

    assert found.status_code == 500
    assert what in found.json()["error"]["message"]


async def test_prompt_log_probabilities_may_be_on_the_choice_or_absent(port: FakePort) -> None:
    nvext = {"token_data": [5, 6], "extra_fields": ["prompt_logprobs"]}
    logprobs = [None, {"6": {"logprob": -3.0}}]
    on_choice = chat(choice={"prompt_logprobs": logprobs}, prompt_logprobs=None)
    nowhere = chat(prompt_logprobs=None)

    for reply, expected in ((on_choice, logprobs), (nowhere, None)):
        found = await ask(port, reply, nvext=nvext, prompt_logprobs=1)
        assert found.json()["nvext"] == {"prompt_logprobs": expected}
