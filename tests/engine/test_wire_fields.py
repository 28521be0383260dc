"""Fields of requests take effect at each of their places, or are refused by name."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from tests.engine.test_wire_tokens import (
    CHAT,
    COMPLETION,
    GENERATE,
    PLACEHOLDER,
    PROMPT,
    TOKEN_CHAT,
    TOOL,
    ask,
    must,
)
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess

Json = dict[str, Any]
_numbers = itertools.count(1)


PLACES = (
    "chat",
    "completion",
    "token route",
    "tokens of a chat",
    "nvext",
    "nvext, salt outside",
    "nvext of a completion",
    "generate",
    "generate, among the sampling parameters",
)


def salted(place: str, prompt: list[int], salt: str) -> tuple[str, Json]:
    """A request with a salt, on one of the ways there are."""
    text = {"messages": [{"role": "user", "content": " ".join(map(str, prompt))}]}
    sampling = {"max_tokens": 1}
    return {
        "chat": (CHAT, {**text, "cache_salt": salt}),
        "completion": (COMPLETION, {"prompt": prompt, "cache_salt": salt}),
        "token route": (TOKEN_CHAT, {"tokens": prompt, "cache_salt": salt}),
        "tokens of a chat": (CHAT, {"tokens": prompt, **text, "cache_salt": salt}),
        "nvext": (
            CHAT,
            {"nvext": {"token_data": prompt, "cache_salt": salt}, "messages": PLACEHOLDER},
        ),
        "nvext, salt outside": (
            CHAT,
            {"nvext": {"token_data": prompt}, "messages": PLACEHOLDER, "cache_salt": salt},
        ),
        "nvext of a completion": (
            COMPLETION,
            {"nvext": {"token_data": prompt, "cache_salt": salt}},
        ),
        "generate": (
            GENERATE,
            {"token_ids": prompt, "sampling_params": sampling, "cache_salt": salt},
        ),
        "generate, among the sampling parameters": (
            GENERATE,
            {"token_ids": prompt, "sampling_params": {**sampling, "cache_salt": salt}},
        ),
    }[place]


@pytest.mark.parametrize("place", PLACES)
def test_a_salt_takes_effect_on_every_path(worker: WorkerProcess, home: str, place: str) -> None:
    prompt = [3 + next(_numbers), *range(10, 90)]

    def cached(salt: str) -> int:
        path, body = salted(place, prompt, salt)
        limit = {} if path == GENERATE else {"max_tokens": 1}
        usage = must(worker, path, **body, **limit)["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("one") == 0
    assert cached("one") >= 32, "the same salt finds what it has left"
    assert cached("two") == 0, "another one does not"


def test_log_probabilities_of_the_prompt_come_on_every_token_path(
    worker: WorkerProcess, home: str
) -> None:
    nvext = {"token_data": PROMPT, "extra_fields": ["prompt_logprobs"]}
    options = {"max_tokens": 1, "prompt_logprobs": 1}
    generated = must(worker, GENERATE, token_ids=PROMPT, sampling_params=options)
    found = [
        generated["prompt_logprobs"],
        must(worker, TOKEN_CHAT, tokens=PROMPT, **options)["prompt_logprobs"],
        must(worker, CHAT, nvext=nvext, messages=PLACEHOLDER, **options)["nvext"][
            "prompt_logprobs"
        ],
        must(worker, COMPLETION, nvext=nvext, **options)["nvext"]["prompt_logprobs"],
    ]

    for each in found:
        assert each[0] is None
        # Clients take the first value for that of the token that was there.
        firsts = [next(iter(entry)) for entry in each[1:]]
        assert firsts == [str(token_id) for token_id in PROMPT[1:]]
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("place", ["priority", "agent_hints"])
def test_a_priority_decides_which_request_comes_first(
    worker: WorkerProcess, home: str, place: str
) -> None:
    done: list[str] = []

    def generate(name: str, priority: int, count: int = 1, tokens: int = 40) -> None:
        sampling = {"max_tokens": tokens, "ignore_eos": True, "n": count}
        if count > 1:
            ask(worker, GENERATE, token_ids=PROMPT, sampling_params=sampling, priority=priority)
        else:
            nvext: Json = {"token_data": PROMPT}
            body: Json = {"messages": PLACEHOLDER, "max_tokens": 40, "ignore_eos": True}
            if place == "priority":
                body["priority"] = priority
            else:
                nvext["agent_hints"] = {"priority": priority}
            must(worker, CHAT, nvext=nvext, **body)
        done.append(name)

    threads = []
    # As many as run at once, twice, then one that waits longest, unless it comes first.
    given = (("running", 5, 16, 2000), ("waiting", 5, 16, 40), ("urgent", 1))
    for requests, arguments in zip((16, 32, 33), given, strict=True):
        threads.append(threading.Thread(target=generate, args=arguments))
        threads[-1].start()
        eventually(lambda n=requests: worker.state()["requests_running"] == n)
    for thread in threads:
        thread.join(timeout=REPLY_SECONDS)

    assert done == ["running", "urgent", "waiting"]


def test_supported_keys_are_passed_on(worker: WorkerProcess, home: str) -> None:
    sampling = {
        "max_tokens": 2,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": -1,
        "min_p": 0.0,
        "seed": 2**62,
        "stop_token_ids": [2],
        "skip_special_tokens": False,
        "min_tokens": 1,
        "repetition_penalty": 1.1,
        "extra_args": {"prl_compact_logprobs": True},
        "routed_experts_prompt_start": 2,
    }
    assert must(worker, GENERATE, token_ids=PROMPT, sampling_params=sampling)["choices"]


def test_messages_come_back_without_invented_keys(
    worker: WorkerProcess, home: str, one_call: dict[str, float]
) -> None:
    body = {"messages": [{"role": "user", "content": "go"}], "max_tokens": 8}
    plain = must(worker, CHAT, **body)["choices"][0]["message"]
    tools = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 100}
    asked = {**body, **tools, "logit_bias": one_call}
    calling = must(worker, CHAT, **asked)["choices"][0]["message"]

    assert {key for key, value in plain.items() if value is not None} == {"role", "content"}
    assert {key for key, value in calling.items() if value not in (None, "")} == {
        "role",
        "tool_calls",
    }


def test_nulls_of_a_message_change_nothing(worker: WorkerProcess, home: str) -> None:
    first = {"role": "user", "content": "go"}
    message = must(worker, CHAT, messages=[first], max_tokens=8)["choices"][0]["message"]
    bare = {key: value for key, value in message.items() if value is not None}
    last = {"role": "user", "content": "on"}

    with_nulls, without = (
        must(worker, "/tokenize", messages=[first, each, last])["tokens"]
        for each in (message, bare)
    )
    assert with_nulls == without
