"""Requests of every dialect, translated for vLLM or refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.fake_server import fake_facts

from fleet_worker.gateway.routes import Access, access_of
from fleet_worker.gateway.table import ROWS, Translations
from fleet_worker.http.asgi import WireError
from fleet_worker.provenance.spans import Dialect

CHAT, TOKEN_CHAT, COMPLETION = (
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/v1/completions",
)
GENERATE = "/inference/v1/generate"
MESSAGES = [{"role": "user", "content": "go"}]
IDS = {"kv_transfer_params": {"prompt_token_ids": [1, 2]}}
ASKING = {"return_token_ids": True}
NAMING = {**ASKING, "return_tokens_as_token_ids": True}
PLACEHOLDER = [{"role": "user", "content": ""}]


def translations(**changes: Any) -> Translations:
    return Translations(fake_facts(**changes))


@pytest.mark.parametrize(("path", "_key", "_translation"), ROWS)
def test_every_translation_belongs_to_a_served_route(
    path: str, _key: Any, _translation: Any
) -> None:
    assert access_of(path) in (Access.DATA, Access.OPEN)


FULL_NVEXT = {
    "token_data": [1, 2],
    "cache_salt": "7",
    "agent_hints": {"priority": 3},
    "routed_experts_prompt_start": 1,
}
OF_NVEXT = {"cache_salt": "7", "priority": 3, "routed_experts_prompt_start": 1}
ENGINE_DATA = {"extra_fields": ["engine_data"]}
ASKED = {"messages": MESSAGES}
ENDS = {"add_generation_prompt": True, "continue_final_message": False}
TRANSLATED: dict[str, tuple[str, dict[str, Any], dict[str, Any] | None]] = {
    "a chat goes as it came": (CHAT, ASKED, None),
    "nulls": (CHAT, {**ASKED, "nvext": None, "tokens": None}, None),
    "a chat with log-probabilities": (
        CHAT,
        {**ASKED, "logprobs": True},
        {**ASKED, "logprobs": True, **NAMING},
    ),
    "a completion with those of the sampled tokens": (
        COMPLETION,
        {"prompt": "a", "logprobs": 0},
        {"prompt": "a", "logprobs": 0, **NAMING},
    ),
    "an echo, whose text vLLM leaves out if it writes ids": (
        COMPLETION,
        {"prompt": "a", "logprobs": 0, "echo": True},
        {"prompt": "a", "logprobs": 0, "echo": True, **NAMING, "return_token_ids": False},
    ),
    "an echo with ids": (
        COMPLETION,
        {"prompt": "a", "logprobs": 0, "echo": True, **ASKING},
        {"prompt": "a", "logprobs": 0, "echo": True, **NAMING},
    ),
    "tokens of a chat": (CHAT, {**ASKED, "tokens": [1, 2]}, {**ASKED, **IDS, **ASKING}),
    "the token route, without messages": (
        TOKEN_CHAT,
        {"tokens": [1, 2], "logprobs": True, "tools": None},
        {"messages": PLACEHOLDER, "logprobs": True, "tools": None, **IDS, **NAMING},
    ),
    "nvext": (CHAT, {**ASKED, "nvext": FULL_NVEXT}, {**ASKED, **OF_NVEXT, **IDS, **ASKING}),
    "nvext that asks for the engine's data": (
        CHAT,
        {**ASKED, "nvext": ENGINE_DATA},
        {**ASKED, "logprobs": True, **NAMING},
    ),
    "nvext of a completion": (
        COMPLETION,
        {"prompt": "", "nvext": {"token_data": [1, 2], **ENGINE_DATA}},
        {"prompt": [1, 2], "logprobs": 0, **NAMING},
    ),
    "a salt that stands among the sampling parameters": (
        GENERATE,
        {"token_ids": [1], "sampling_params": {"cache_salt": "7", "max_tokens": 1}},
        {"token_ids": [1], "cache_salt": "7", "sampling_params": {"max_tokens": 1}},
    ),
    "a start that stands outside of them": (
        GENERATE,
        {"token_ids": [1], "sampling_params": {}, "routed_experts_prompt_start": 4},
        {"token_ids": [1], "sampling_params": {"routed_experts_prompt_start": 4}},
    ),
    "a prompt to tokenize": (
        "/v1/tokenize",
        {"prompt": "a"},
        {"prompt": "a", "model": "policy", "add_special_tokens": True},
    ),
    "messages to tokenize": (
        "/tokenize",
        {**ASKED, "prompt": None, "tools": None},
        {**ASKED, "tools": None, "model": "policy", "add_special_tokens": False, **ENDS},
    ),
    "tokens to make text of": (
        "/v1/detokenize",
        {"tokens": [1, 2]},
        {"tokens": [1, 2], "model": "policy"},
    ),
}
PASSED_TO = {TOKEN_CHAT: CHAT, "/v1/tokenize": "/tokenize", "/v1/detokenize": "/detokenize"}


@pytest.mark.parametrize(("path", "body", "sent"), TRANSLATED.values(), ids=TRANSLATED)
def test_a_request_is_translated(
    path: str, body: dict[str, Any], sent: dict[str, Any] | None
) -> None:
    forward = translations().translate(path, body)

    assert (forward.path, forward.body) == (PASSED_TO.get(path, path), sent)
    assert forward.reply.dialect is Dialect.CHOICES
    assert forward.reply.is_stamped is (path == GENERATE)


LONG = "maximum context length"
"""Clients know a full context by these words."""
IMAGE = [{"role": "user", "content": [{"type": "image_url"}]}]
REFUSED: dict[str, dict[str, tuple[Any, ...]]] = {
    CHAT: {
        "no tokens": ({"tokens": []}, "tokens"),
        "text for tokens": ({"tokens": "ab"}, "tokens"),
        "a bool for an id": ({"tokens": [1, True]}, "tokens"),
        "an unknown id": ({"tokens": [1, 999]}, "tokens", "999"),
        "a negative id": ({"tokens": [-1]}, "tokens", "-1"),
        "too long": ({"tokens": [1] * 100}, "tokens", LONG),
        "n > 1": ({"tokens": [1], "n": 2}, "n"),
        "an echo of tokens": ({"tokens": [1], "echo": True}, "echo"),
        "hidden tokens": ({"tokens": [1], "include_reasoning": False}, "include_reasoning"),
        "ids in two places": ({"tokens": [1], **IDS}, "kv_transfer_params"),
        "truncated": ({"tokens": [1], "truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        "an image with tokens": ({"tokens": [1], "messages": IMAGE}, "messages"),
        "a key of another route": ({"token_ids": [1]}, "token_ids"),
        "a field among the template's": (
            {**ASKED, "chat_template_kwargs": {"add_generation_prompt": False}},
            "chat_template_kwargs.add_generation_prompt",
        ),
        "no data": ({"nvext": {"token_data": []}}, "nvext.token_data"),
        "what is n?": ({"nvext": {"token_data": [1], "n": 1}}, "nvext.n"),
        "a list for nvext": ({"nvext": []}, "nvext"),
        "a field that is not there": (
            {"nvext": {"extra_fields": ["worker_id"]}},
            "nvext.extra_fields",
            "worker_id",
        ),
        "a field that was not asked for": (
            {"nvext": {"extra_fields": ["prompt_logprobs"]}},
            "prompt_logprobs",
        ),
        "fields of a stream": ({"nvext": ENGINE_DATA, "stream": True}, "nvext.extra_fields"),
        "fields of several choices": ({"nvext": ENGINE_DATA, "n": 2}, "n"),
        "two prompts": ({"nvext": {"token_data": [1]}, "tokens": [2]}, "tokens"),
        "two salts": ({"nvext": {"cache_salt": "7"}, "cache_salt": "8"}, "cache_salt"),
        "two priorities": ({"nvext": {"agent_hints": {"priority": 1}}, "priority": 2}, "priority"),
        "an empty salt": ({"nvext": {"cache_salt": ""}}, "nvext.cache_salt"),
    },
    TOKEN_CHAT: {"no tokens": (ASKED, "tokens")},
    COMPLETION: {
        "another key": ({"sampling_params": {}}, "sampling_params"),
        "a prompt of ids that is too long": ({"prompt": [1] * 100}, "prompt", LONG),
        "an unknown id in the second prompt": ({"prompt": [[1], [1, 999]]}, "prompt", "999"),
        "data of the prompt too": ({"nvext": ENGINE_DATA, "prompt": "a", "echo": True}, "echo"),
        "a prompt with tokens": ({"nvext": {"token_data": [1]}, "prompt": "a"}, "prompt"),
    },
    GENERATE: {
        "no ids": ({"sampling_params": {}}, "token_ids"),
        "a misspelt parameter": (
            {"token_ids": [1], "sampling_params": {"tempurature": 1}},
            "sampling_params.tempurature",
        ),
        "a parameter in the wrong place": (
            {"token_ids": [1], "sampling_params": {}, "temperature": 1},
            "temperature",
        ),
        "two salts": (
            {"token_ids": [1], "sampling_params": {"cache_salt": "7"}, "cache_salt": "8"},
            "cache_salt",
        ),
        "tokens that the weights did not make": (
            {"token_ids": [1], "sampling_params": {"trace_decode_token_ids": [5]}},
            None,
        ),
    },
    "/tokenize": {
        "both": ({"prompt": "a", "messages": []}, "prompt"),
        "neither": ({}, "prompt"),
        "two ends of a prompt, one by default": (
            {**ASKED, "continue_final_message": True},
            "continue_final_message",
        ),
        "a field among the template's": (
            {**ASKED, "chat_template_kwargs": {"continue_final_message": True}},
            "chat_template_kwargs.continue_final_message",
        ),
    },
    "/detokenize": {
        "a token of nothing": ({"tokens": [1, 256]}, "tokens", "256"),
        "no ids at all": ({"tokens": ["1"]}, "tokens"),
    },
}


@pytest.mark.parametrize(
    ("path", "found"),
    [
        pytest.param(path, found, id=f"{path}: {sentence}")
        for path, rows in REFUSED.items()
        for sentence, found in rows.items()
    ],
)
def test_an_invalid_request_is_refused(path: str, found: tuple[Any, ...]) -> None:
    body, param, *words = found
    with pytest.raises(WireError) as refused:
        translations().translate(path, body)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert all(word in refused.value.message for word in words)


def test_a_model_that_is_not_there_is_not_found() -> None:
    with pytest.raises(WireError, match="'x'") as refused:
        translations().translate("/tokenize", {"prompt": "a", "model": "x"})

    assert (refused.value.status, refused.value.param) == (404, "model")


def test_an_image_with_tokens_is_not_implemented() -> None:
    with pytest.raises(WireError) as refused:
        translations().translate(CHAT, {"nvext": {"token_data": [1]}, "messages": IMAGE})

    assert (refused.value.status, refused.value.kind) == (400, "NotImplementedError")


def test_with_several_models_a_request_must_name_one() -> None:
    several = translations(names=lambda: ("policy", "adapter"))

    with pytest.raises(WireError, match="policy, adapter") as refused:
        several.translate("/tokenize", {"prompt": "a"})
    assert refused.value.status == 400
    forward = several.translate("/detokenize", {"tokens": [1], "model": "adapter"})
    assert forward.body is not None
    assert forward.body["model"] == "adapter"


def test_the_senders_request_object_is_not_modified() -> None:
    body = {"token_ids": [1], "sampling_params": {"cache_salt": "7"}}
    translations().translate(GENERATE, body)

    assert body == {"token_ids": [1], "sampling_params": {"cache_salt": "7"}}


NO_ROOM = {"error": {"message": "max_tokens must be at least 1, got 0. (parameter=…)", "code": 400}}


@pytest.mark.parametrize("asked", [{}, {"logprobs": 1}])
def test_an_error_about_a_full_context_has_the_text_that_clients_parse(
    asked: dict[str, Any],
) -> None:
    explain = translations().translate(COMPLETION, {"prompt": "long", **asked}).reply.refusal

    assert explain is not None
    error = explain(NO_ROOM)["error"]
    assert error["message"].startswith("this model's maximum context length is 100 tokens")
    assert error["code"] == 400
    other = {"error": {"message": "something else"}}
    assert explain(other) == other


@pytest.mark.parametrize("key", ["max_tokens", "max_completion_tokens"])
def test_a_request_for_zero_tokens_gets_a_clear_error(key: str) -> None:
    explain = translations().translate(CHAT, {"messages": MESSAGES, key: 0}).reply.refusal

    assert explain is not None
    assert explain(NO_ROOM) == NO_ROOM
