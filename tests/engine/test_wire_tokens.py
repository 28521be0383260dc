"""Tokens in, tokens out: the rules of every route that takes or returns tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tests.support.worker import WorkerProcess, events_of

Json = dict[str, Any]
CHAT, TOKEN_CHAT, COMPLETION = (
    "/v1/chat/completions",
    "/v1/chat/completions/tokens",
    "/v1/completions",
)
GENERATE = "/inference/v1/generate"
PROMPT = [5, 6, 7, 8]
PLACEHOLDER = [{"role": "user", "content": ""}]
# Bytes that begin or continue a letter without a whole one: text cannot distinguish them.
PARTS = [141, 142, 255]


def ask(worker: WorkerProcess, path: str, **body: Any) -> httpx.Response:
    return worker.public.post(path, json={"model": "policy", **body})


def must(worker: WorkerProcess, path: str, **body: Any) -> Json:
    reply = ask(worker, path, **body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def refused(worker: WorkerProcess, path: str, **body: Any) -> tuple[int, str]:
    reply = ask(worker, path, **body)
    return reply.status_code, reply.json()["error"]["message"]


def by_tokens(worker: WorkerProcess, prompt: list[int] = PROMPT, **options: Any) -> Json:
    options = {"max_tokens": 6, "ignore_eos": True, **options}
    reply = must(worker, TOKEN_CHAT, tokens=prompt, logprobs=True, **options)
    (choice,) = reply["choices"]
    return {
        "prompt": reply["prompt_token_ids"],
        "ids": choice["token_ids"],
        "logprobs": [e["logprob"] for e in choice["logprobs"]["content"]],
        "usage": reply["usage"],
    }


def by_chat(worker: WorkerProcess, prompt: list[int] = PROMPT, **options: Any) -> Json:
    options = {"max_tokens": 6, "ignore_eos": True, "messages": PLACEHOLDER, **options}
    reply = must(worker, CHAT, tokens=prompt, logprobs=True, return_token_ids=True, **options)
    (choice,) = reply["choices"]
    return {
        "prompt": reply["prompt_token_ids"],
        "ids": choice["token_ids"],
        "logprobs": [e["logprob"] for e in choice["logprobs"]["content"]],
        "usage": reply["usage"],
    }


def by_nvext(
    worker: WorkerProcess, prompt: list[int] = PROMPT, path: str = CHAT, **options: Any
) -> Json:
    nvext = {"token_data": prompt, "extra_fields": ["engine_data", "completion_token_ids"]}
    options = {"max_tokens": 6, "ignore_eos": True, **options}
    if path == CHAT:
        options["messages"] = PLACEHOLDER
    reply = must(worker, path, nvext=nvext, **options)
    data = reply["nvext"]["engine_data"]
    assert reply["nvext"]["completion_token_ids"] == data["completion_token_ids"]
    return {
        "prompt": data["prompt_token_ids"],
        "ids": data["completion_token_ids"],
        "logprobs": data["completion_logprobs"],
        "usage": reply["usage"],
    }


def by_nvext_completion(worker: WorkerProcess, prompt: list[int] = PROMPT, **options: Any) -> Json:
    return by_nvext(worker, prompt, COMPLETION, **options)


def by_generate(worker: WorkerProcess, prompt: list[int] = PROMPT, **options: Any) -> Json:
    sampling = {"max_tokens": 6, "ignore_eos": True, "logprobs": 0, **options}
    body = {"token_ids": prompt, "sampling_params": sampling, "return_token_ids": True}
    reply = must(worker, GENERATE, **body)
    (choice,) = reply["choices"]
    content = choice["logprobs"]["content"]
    assert [e["token_id"] for e in content] == choice["token_ids"]
    return {
        "prompt": reply["prompt_token_ids"],
        "ids": choice["token_ids"],
        "logprobs": [e["logprob"] for e in content],
        "usage": reply["usage"],
    }


WAYS = {
    "token route": by_tokens,
    "tokens of a chat": by_chat,
    "nvext of a chat": by_nvext,
    "nvext of a completion": by_nvext_completion,
    "generate": by_generate,
}
Way = Callable[..., Json]
all_ways = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)


@all_ways
def test_ids_come_from_the_engine_also_where_the_text_has_lost_them(
    worker: WorkerProcess, home: str, way: Way
) -> None:
    found = way(worker, allowed_token_ids=PARTS, seed=7, max_tokens=12)

    assert len(found["ids"]) == 12
    assert set(found["ids"]) <= set(PARTS)
    assert (
        found["ids"] == by_generate(worker, allowed_token_ids=PARTS, seed=7, max_tokens=12)["ids"]
    )


def token_bodies(ids: list[int]) -> list[tuple[str, Json]]:
    """The same prompt on every way in."""
    return [
        (TOKEN_CHAT, {"tokens": ids}),
        (CHAT, {"tokens": ids, "messages": PLACEHOLDER}),
        (CHAT, {"nvext": {"token_data": ids}, "messages": PLACEHOLDER}),
        (COMPLETION, {"nvext": {"token_data": ids}}),
        (COMPLETION, {"prompt": ids}),
        (GENERATE, {"token_ids": ids, "sampling_params": {"max_tokens": 1}}),
    ]


@all_ways
@pytest.mark.parametrize("stop", ["length", "stop"])
def test_ids_log_probabilities_and_usage_have_one_length(
    worker: WorkerProcess, home: str, way: Way, stop: str
) -> None:
    options = {"stop_token_ids": [30], "allowed_token_ids": [30]} if stop == "stop" else {}
    found = way(worker, max_tokens=9, **options)

    count = 9 if stop == "length" else 1  # the stop token is one of them
    assert len(found["ids"]) == len(found["logprobs"]) == count
    assert found["usage"]["completion_tokens"] == count
    assert found["usage"]["total_tokens"] == count + len(PROMPT)


@pytest.mark.parametrize("path", [CHAT, TOKEN_CHAT])
def test_ids_log_probabilities_and_usage_of_a_stream_have_one_length(
    worker: WorkerProcess, home: str, path: str
) -> None:
    body = {
        "tokens": PROMPT,
        "messages": PLACEHOLDER,
        "logprobs": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 9,
        "ignore_eos": True,
    }
    events = events_of(ask(worker, path, **body).text)

    assert events[0]["prompt_token_ids"] == PROMPT
    choices = [choice for event in events for choice in event["choices"] if choice["logprobs"]]
    assert all(len(c["token_ids"]) == len(c["logprobs"]["content"]) for c in choices)
    assert sum(len(c["token_ids"]) for c in choices) == 9
    assert events[-1]["usage"]["completion_tokens"] == 9


def test_entries_without_a_value_keep_their_place(worker: WorkerProcess, home: str) -> None:
    nvext = {"token_data": PROMPT, "extra_fields": ["prompt_logprobs", "engine_data"]}
    body = {"nvext": nvext, "messages": PLACEHOLDER, "max_tokens": 1, "prompt_logprobs": 1}
    found = must(worker, CHAT, **body)["nvext"]["prompt_logprobs"]

    assert len(found) == len(PROMPT)
    assert found[0] is None
    assert all(str(t) in entry for t, entry in zip(PROMPT[1:], found[1:], strict=True))


@all_ways
def test_the_ids_of_the_prompt_are_those_that_were_sent(
    worker: WorkerProcess, home: str, way: Way
) -> None:
    prompt = [2, 0, 1, 511, 141, 2, 2]  # special tokens, parts of letters; no text would give it
    found = way(worker, prompt)

    assert found["prompt"] == prompt
    assert found["usage"]["prompt_tokens"] == len(prompt)


def entries_of(worker: WorkerProcess, path: str, **options: Any) -> list[Json]:
    """All entries of log-probabilities in a reply, whole or streamed."""
    body = {"max_tokens": 12, "ignore_eos": True, "logprobs": True, **options}
    reply = ask(worker, path, messages=[{"role": "user", "content": "go"}], **body)
    assert reply.status_code == 200, reply.text
    events = events_of(reply.text) if options.get("stream") else [reply.json()]
    choices = [choice for event in events for choice in event["choices"]]
    return [entry for c in choices if c["logprobs"] for entry in c["logprobs"]["content"]]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="chat"),
        pytest.param({"top_logprobs": 2}, id="with others"),
        pytest.param({"tokens": PROMPT}, id="tokens"),
        pytest.param({"nvext": {"token_data": PROMPT}}, id="nvext"),
        pytest.param({"return_tokens_as_token_ids": True}, id="named by id"),
    ],
)
def test_every_entry_has_token_and_bytes(
    worker: WorkerProcess, home: str, options: Json, stream: bool
) -> None:
    entries = entries_of(worker, CHAT, stream=stream, **options)

    assert len(entries) == 12
    for entry in [*entries, *(each for e in entries for each in e["top_logprobs"])]:
        assert entry["token"]
        assert entry["bytes"]
        assert isinstance(entry["token_id"], int)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_parts_of_letters_stay_reversible(worker: WorkerProcess, home: str, stream: bool) -> None:
    entries = entries_of(worker, CHAT, stream=stream, allowed_token_ids=PARTS, top_logprobs=2)

    for entry in [*entries, *(each for e in entries for each in e["top_logprobs"])]:
        if entry["token_id"] in PARTS:
            (byte,) = entry["bytes"]
            assert byte >= 0x80
            assert entry["token"] == rf"\x{byte:02x}"
    assert {entry["token_id"] for entry in entries} <= set(PARTS)


def test_text_is_the_bytes_of_its_tokens(worker: WorkerProcess, home: str) -> None:
    text = "héllo wörld €uro"
    ids = must(worker, "/tokenize", prompt=text, add_special_tokens=False)["tokens"]
    body = {"tokens": PROMPT, "logprobs": True, "ignore_eos": True, "temperature": 0}
    reply = must(worker, TOKEN_CHAT, max_tokens=40, allowed_token_ids=sorted(set(ids)), **body)
    (choice,) = reply["choices"]
    raw = b"".join(bytes(entry["bytes"]) for entry in choice["logprobs"]["content"])

    assert raw.decode("utf-8", errors="replace").startswith(choice["message"]["content"])


def test_names_of_tokens_are_reversible_everywhere(worker: WorkerProcess, home: str) -> None:
    text = "€"
    reply = must(worker, "/tokenize", prompt=text, add_special_tokens=False, return_token_strs=True)
    completion = must(
        worker,
        COMPLETION,
        prompt=PROMPT,
        max_tokens=6,
        logprobs=2,
        allowed_token_ids=PARTS,
        ignore_eos=True,
        return_token_ids=True,
    )
    lists = completion["choices"][0]["logprobs"]

    assert reply["count"] > 1
    assert all(reply["token_strs"])
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(reply["token_strs"])
    assert all(name.startswith(r"\x") for name in lists["tokens"])
    assert len(set(lists["tokens"])) == len(set(completion["choices"][0]["token_ids"]))
    assert all(len(candidates) >= 2 for candidates in lists["top_logprobs"])


TOOL = {
    "type": "function",
    "function": {
        "name": "f",
        "strict": True,  # otherwise the arguments may be any JSON
        "parameters": {
            "type": "object",
            "properties": {"x": {"enum": [1, 2]}},
            "required": ["x"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_tokens_of_withheld_text_keep_their_log_probabilities(
    worker: WorkerProcess, home: str, choice: Any, one_call: dict[str, float]
) -> None:
    body = {
        "messages": [{"role": "user", "content": "call it"}],
        "tools": [TOOL],
        "tool_choice": choice,
        "logprobs": True,
        "logit_bias": one_call,
        "max_tokens": 100,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    events = events_of(ask(worker, CHAT, **body).text)
    choices = [choice for event in events for choice in event["choices"]]
    entries = [e for c in choices if c["logprobs"] for e in c["logprobs"]["content"]]
    text = "".join(c["delta"].get("content") or "" for c in choices)
    calls = [call for c in choices for call in c["delta"].get("tool_calls") or ()]

    assert calls, "the parser took something for a call"
    assert len(entries) == events[-1]["usage"]["completion_tokens"]
    raw = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert len(text.encode()) < len(raw), "and withheld its text"
    assert any(
        c["finish_reason"] and c["weight_versions"][-1]["end"] == len(entries) for c in choices
    )


def test_tokens_are_named_by_id_on_request(worker: WorkerProcess, home: str) -> None:
    asked = {"return_tokens_as_token_ids": True, "top_logprobs": 1}
    whole = entries_of(worker, CHAT, **asked)
    streamed = entries_of(worker, CHAT, stream=True, **asked)
    options = {"max_tokens": 4, "return_token_ids": True, "return_tokens_as_token_ids": True}
    completion = must(worker, COMPLETION, prompt=PROMPT, logprobs=1, **options)["choices"][0]

    for entry in [*whole, *streamed]:
        assert entry["token"] == f"token_id:{entry['token_id']}"
        assert entry["top_logprobs"][0]["token"].startswith("token_id:")
    names = [f"token_id:{token_id}" for token_id in completion["token_ids"]]
    assert completion["logprobs"]["tokens"] == names


def test_log_probabilities_of_nvext_are_those_of_the_reply(
    worker: WorkerProcess, home: str
) -> None:
    nvext = {"token_data": PROMPT, "extra_fields": ["engine_data"]}
    body = {"nvext": nvext, "messages": PLACEHOLDER, "max_tokens": 5, "ignore_eos": True}
    both = must(worker, CHAT, logprobs=True, **body)
    alone = must(worker, CHAT, **body)

    echoed = [entry["logprob"] for entry in both["choices"][0]["logprobs"]["content"]]
    assert both["nvext"]["engine_data"]["completion_logprobs"] == echoed
    assert len(alone["nvext"]["engine_data"]["completion_logprobs"]) == 5
    assert alone["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("max_tokens", [4, 0])
def test_an_echo_has_the_text_of_the_prompt_also_with_log_probabilities(
    worker: WorkerProcess, home: str, max_tokens: int
) -> None:
    body = {"prompt": "an echo", "echo": True, "temperature": 0, "max_tokens": max_tokens}
    body["ignore_eos"] = True
    (plain,) = must(worker, COMPLETION, **body)["choices"]
    (choice,) = must(worker, COMPLETION, logprobs=0, **body)["choices"]
    events = events_of(ask(worker, COMPLETION, logprobs=0, stream=True, **body).text)
    parts = [part for event in events for part in event["choices"]]

    assert plain["text"].startswith("an echo")
    assert choice["text"] == "".join(part["text"] for part in parts) == plain["text"]
    tokens, values = choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"]
    assert "an echo" in "".join(tokens)
    assert (len(tokens), values[0]) == (len(values), None)
    assert [name for part in parts for name in part["logprobs"]["tokens"]] == tokens
    assert choice["token_ids"] is None


def test_every_way_of_sending_tokens_gives_the_same_prompt(
    worker: WorkerProcess, home: str
) -> None:
    found = [way(worker, temperature=0, max_tokens=20) for way in WAYS.values()]

    assert all(each["ids"] == found[0]["ids"] for each in found)
    assert all(each["logprobs"] == found[0]["logprobs"] for each in found)


def test_messages_sent_with_tokens_are_not_read(worker: WorkerProcess, home: str) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "else"}]

    assert (
        by_chat(worker, temperature=0)["ids"]
        == by_chat(worker, temperature=0, messages=messages)["ids"]
    )


def test_a_prompt_that_leaves_no_room_is_refused_in_words_that_clients_know(
    worker: WorkerProcess, home: str
) -> None:
    for path, body in token_bodies([5] * 4096):
        status, message = refused(worker, path, **body)
        assert status == 400, path
        assert "this model's maximum context length is" in message.lower(), path


def test_a_completion_without_a_limit_continues_to_the_end_of_the_context(
    worker: WorkerProcess, home: str
) -> None:
    prompt = [5] * 4076
    found = must(worker, GENERATE, token_ids=prompt, sampling_params={"ignore_eos": True})

    assert found["usage"]["completion_tokens"] == 20
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] is not None


def test_messages_that_fill_the_context_to_the_last_token_are_refused_in_the_same_words(
    worker: WorkerProcess, home: str
) -> None:
    def length(words: int) -> int:
        return int(must(worker, "/tokenize", messages=messages(words))["count"])

    def messages(words: int) -> list[Json]:
        return [{"role": "user", "content": "a" + " the" * words}]

    words = 4096 - length(0)
    assert length(words) == 4096
    for options in ({}, {"logprobs": True}):
        status, message = refused(worker, CHAT, messages=messages(words), **options)
        assert status == 400
        assert "this model's maximum context length is" in message
    assert ask(worker, CHAT, messages=messages(words - 1)).status_code == 200
