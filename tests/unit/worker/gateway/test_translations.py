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


@pytest.mark.parametrize(
    ("path", "body", "to", "sent"),
    [
        pytest.param(CHAT, {"messages": MESSAGES}, CHAT, None, id="a chat goes as it came"),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "logprobs": True},
            CHAT,
            {"messages": MESSAGES, "logprobs": True, **NAMING},
            id="a chat with log-probabilities",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": "a", "logprobs": 0},
            COMPLETION,
            {"prompt": "a", "logprobs": 0, **NAMING},
            id="a completion with those of the sampled tokens",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": "a", "logprobs": 0, "echo": True},
            COMPLETION,
            {"prompt": "a", "logprobs": 0, "echo": True, **NAMING, "return_token_ids": False},
            id="an echo, whose text vLLM leaves out if it writes ids",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": "a", "logprobs": 0, "echo": True, **ASKING},
            COMPLETION,
            {"prompt": "a", "logprobs": 0, "echo": True, **NAMING},
            id="an echo with ids",
        ),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "tokens": [1, 2]},
            CHAT,
            {"messages": MESSAGES, **IDS, **ASKING},
            id="tokens of a chat",
        ),
        pytest.param(
            TOKEN_CHAT,
            {"tokens": [1, 2], "logprobs": True, "tools": None},
            CHAT,
            {"messages": PLACEHOLDER, "logprobs": True, "tools": None, **IDS, **NAMING},
            id="the token route, without messages",
        ),
        pytest.param(
            CHAT,
            {
                "messages": PLACEHOLDER,
                "nvext": {
                    "token_data": [1, 2],
                    "cache_salt": "7",
                    "agent_hints": {"priority": 3},
                    "routed_experts_prompt_start": 1,
                },
            },
            CHAT,
            {
                "messages": PLACEHOLDER,
                "cache_salt": "7",
                "priority": 3,
                "routed_experts_prompt_start": 1,
                **IDS,
                **ASKING,
            },
            id="nvext",
        ),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "nvext": {"extra_fields": ["engine_data"]}},
            CHAT,
            {"messages": MESSAGES, "logprobs": True, **NAMING},
            id="nvext that asks for the engine's data",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": "", "nvext": {"token_data": [1, 2], "extra_fields": ["engine_data"]}},
            COMPLETION,
            {"prompt": [1, 2], "logprobs": 0, **NAMING},
            id="nvext of a completion",
        ),
        pytest.param(
            CHAT, {"messages": MESSAGES, "nvext": None, "tokens": None}, CHAT, None, id="nulls"
        ),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {"cache_salt": "7", "max_tokens": 1}},
            GENERATE,
            {"token_ids": [1], "cache_salt": "7", "sampling_params": {"max_tokens": 1}},
            id="a salt that stands among the sampling parameters",
        ),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {}, "routed_experts_prompt_start": 4},
            GENERATE,
            {"token_ids": [1], "sampling_params": {"routed_experts_prompt_start": 4}},
            id="a start that stands outside of them",
        ),
        pytest.param(
            "/v1/tokenize",
            {"prompt": "a"},
            "/tokenize",
            {"prompt": "a", "model": "policy", "add_special_tokens": True},
            id="a prompt to tokenize",
        ),
        pytest.param(
            "/tokenize",
            {"messages": MESSAGES, "prompt": None, "tools": None},
            "/tokenize",
            {
                "messages": MESSAGES,
                "tools": None,
                "model": "policy",
                "add_special_tokens": False,
                "add_generation_prompt": True,
                "continue_final_message": False,
            },
            id="messages to tokenize",
        ),
        pytest.param(
            "/v1/detokenize",
            {"tokens": [1, 2]},
            "/detokenize",
            {"tokens": [1, 2], "model": "policy"},
            id="tokens to make text of",
        ),
    ],
)
def test_a_request_is_translated(
    path: str, body: dict[str, Any], to: str, sent: dict[str, Any] | None
) -> None:
    forward = translations().translate(path, body)

    assert (forward.path, forward.body) == (to, sent)
    assert forward.reply.dialect is Dialect.CHOICES
    assert forward.reply.is_stamped is (path == GENERATE)


@pytest.mark.parametrize(
    ("path", "body", "param", "words"),
    [
        pytest.param(CHAT, {"tokens": []}, "tokens", "empty", id="no tokens"),
        pytest.param(CHAT, {"tokens": "ab"}, "tokens", "list", id="text for tokens"),
        pytest.param(CHAT, {"tokens": [1, True]}, "tokens", "list", id="a bool for an id"),
        pytest.param(CHAT, {"tokens": [1, 999]}, "tokens", "id 999", id="an unknown id"),
        pytest.param(CHAT, {"tokens": [-1]}, "tokens", "id -1", id="a negative id"),
        pytest.param(
            CHAT, {"tokens": [1] * 100}, "tokens", "maximum context length", id="too long"
        ),
        pytest.param(CHAT, {"tokens": [1], "n": 2}, "n", "n must be 1", id="n > 1"),
        pytest.param(CHAT, {"tokens": [1], "echo": True}, "echo", "echo", id="an echo of tokens"),
        pytest.param(
            CHAT,
            {"tokens": [1], "include_reasoning": False},
            "include_reasoning",
            "hide",
            id="hidden tokens",
        ),
        pytest.param(
            CHAT,
            {"tokens": [1], **IDS},
            "kv_transfer_params",
            "mutually exclusive",
            id="ids in two places",
        ),
        pytest.param(
            CHAT,
            {"tokens": [1], "truncate_prompt_tokens": 5},
            "truncate_prompt_tokens",
            "not supported",
            id="truncated tokens",
        ),
        pytest.param(
            CHAT,
            {
                "tokens": [1],
                "messages": [{"role": "user", "content": [{"type": "image_url"}]}],
            },
            "messages",
            "not supported",
            id="an image with tokens",
        ),
        pytest.param(TOKEN_CHAT, {"messages": MESSAGES}, "tokens", "needs", id="no tokens"),
        pytest.param(
            CHAT, {"token_ids": [1]}, "token_ids", "generate", id="a key of another route"
        ),
        pytest.param(
            COMPLETION, {"sampling_params": {}}, "sampling_params", "no", id="another key"
        ),
        pytest.param(
            CHAT,
            {"messages": MESSAGES, "chat_template_kwargs": {"add_generation_prompt": False}},
            "chat_template_kwargs.add_generation_prompt",
            "overridden",
            id="a field among the template's arguments",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": [1] * 100},
            "prompt",
            "maximum context length",
            id="a prompt of ids that is too long",
        ),
        pytest.param(
            COMPLETION,
            {"prompt": [[1], [1, 999]]},
            "prompt",
            "id 999",
            id="an unknown id in the second of two prompts",
        ),
        pytest.param(
            CHAT, {"nvext": {"token_data": []}}, "nvext.token_data", "empty", id="no data"
        ),
        pytest.param(
            CHAT, {"nvext": {"token_data": [1], "n": 1}}, "nvext.n", "xtra", id="what is n?"
        ),
        pytest.param(CHAT, {"nvext": []}, "nvext", "nvext", id="a list for nvext"),
        pytest.param(
            CHAT,
            {"nvext": {"extra_fields": ["worker_id"]}},
            "nvext.extra_fields",
            "worker_id",
            id="a field that is not there",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"extra_fields": ["prompt_logprobs"]}},
            "prompt_logprobs",
            "does not ask",
            id="a field that was not asked for",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"extra_fields": ["engine_data"]}, "stream": True},
            "nvext.extra_fields",
            "stream",
            id="fields of a stream",
        ),
        pytest.param(
            COMPLETION,
            {"nvext": {"extra_fields": ["engine_data"]}, "prompt": "a", "echo": True},
            "echo",
            "nvext",
            id="data of the prompt among the data of the completion",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"extra_fields": ["engine_data"]}, "n": 2},
            "n",
            "n must be 1",
            id="fields of several choices",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"token_data": [1]}, "tokens": [2]},
            "tokens",
            "mutually exclusive",
            id="two prompts",
        ),
        pytest.param(
            COMPLETION,
            {"nvext": {"token_data": [1]}, "prompt": "a"},
            "prompt",
            "differ",
            id="a prompt with tokens",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"cache_salt": "7"}, "cache_salt": "8"},
            "cache_salt",
            "two different values",
            id="two salts",
        ),
        pytest.param(
            CHAT,
            {"nvext": {"agent_hints": {"priority": 1}}, "priority": 2},
            "priority",
            "two different values",
            id="two priorities",
        ),
        pytest.param(
            CHAT, {"nvext": {"cache_salt": ""}}, "nvext.cache_salt", "", id="an empty salt"
        ),
        pytest.param(GENERATE, {"sampling_params": {}}, "token_ids", "list", id="no ids"),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {"tempurature": 1}},
            "sampling_params.tempurature",
            "unknown",
            id="a misspelt parameter",
        ),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {}, "temperature": 1},
            "temperature",
            "unknown",
            id="a parameter in the wrong place",
        ),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {"cache_salt": "7"}, "cache_salt": "8"},
            "cache_salt",
            "two different values",
            id="two salts of generate",
        ),
        pytest.param(
            GENERATE,
            {"token_ids": [1], "sampling_params": {"trace_decode_token_ids": [5]}},
            None,
            "label",
            id="tokens that the weights did not make",
        ),
        pytest.param("/tokenize", {"prompt": "a", "messages": []}, "prompt", "both", id="both"),
        pytest.param("/tokenize", {}, "prompt", "neither", id="neither"),
        pytest.param(
            "/tokenize",
            {"messages": MESSAGES, "continue_final_message": True},
            "continue_final_message",
            "mutually exclusive",
            id="two ends of a prompt, one by default",
        ),
        pytest.param(
            "/tokenize",
            {"messages": MESSAGES, "chat_template_kwargs": {"continue_final_message": True}},
            "chat_template_kwargs.continue_final_message",
            "overridden",
            id="a field among the template's arguments of tokenize",
        ),
        pytest.param(
            "/detokenize", {"tokens": [1, 256]}, "tokens", "id 256", id="a token of nothing"
        ),
        pytest.param("/detokenize", {"tokens": ["1"]}, "tokens", "list", id="no ids at all"),
    ],
)
def test_an_invalid_request_is_refused(
    path: str, body: dict[str, Any], param: str | None, words: str
) -> None:
    with pytest.raises(WireError) as refused:
        translations().translate(path, body)

    assert (refused.value.status, refused.value.param) == (400, param)
    assert words in refused.value.message


def test_a_model_that_is_not_there_is_not_found() -> None:
    with pytest.raises(WireError, match="'x'") as refused:
        translations().translate("/tokenize", {"prompt": "a", "model": "x"})

    assert (refused.value.status, refused.value.param) == (404, "model")


def test_an_image_with_tokens_is_not_implemented() -> None:
    image = [{"role": "user", "content": [{"type": "image_url"}]}]
    with pytest.raises(WireError) as refused:
        translations().translate(CHAT, {"nvext": {"token_data": [1]}, "messages": image})

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
