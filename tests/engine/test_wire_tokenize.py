"""Tokenizing reads requests as generation does."""

from __future__ import annotations

from typing import Any

import pytest
from tests.engine.test_wire_tokens import CHAT, COMPLETION, ask, must, refused
from tests.support.worker import WorkerProcess

Json = dict[str, Any]
BOS = 0  # what the tokenizer of these tests puts before a prompt
MESSAGES = [{"role": "user", "content": "the fleet"}]


def tokens_of(worker: WorkerProcess, path: str = "/tokenize", **body: Any) -> list[int]:
    reply = must(worker, path, **body)
    tokens: list[int] = reply["tokens"]
    assert reply["count"] == len(tokens)
    assert reply["max_model_len"] == 4096
    return tokens


def test_a_prompt_gets_special_tokens_and_messages_do_not(worker: WorkerProcess) -> None:
    prompt, messages = (tokens_of(worker, prompt="the fleet"), tokens_of(worker, messages=MESSAGES))

    assert prompt[0] == BOS
    assert messages[0] != BOS, "the template has put all there is to put"
    assert tokens_of(worker, prompt="the fleet", add_special_tokens=False) == prompt[1:]
    assert tokens_of(worker, messages=MESSAGES, add_special_tokens=True) == [BOS, *messages]


def test_tokenizing_uses_the_documented_defaults(worker: WorkerProcess) -> None:
    assert tokens_of(worker, prompt="the fleet") == tokens_of(
        worker, prompt="the fleet", add_special_tokens=True
    )
    assert tokens_of(worker, messages=MESSAGES) == tokens_of(
        worker,
        messages=MESSAGES,
        add_special_tokens=False,
        add_generation_prompt=True,
        continue_final_message=False,
    )
    assert tokens_of(worker, prompt="the fleet", add_special_tokens=None)[0] == BOS


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_missing_model_means_the_only_one_and_an_unknown_one_is_404(
    worker: WorkerProcess, path: str
) -> None:
    body: Json = {"prompt": "a"} if path == "/tokenize" else {"tokens": [5]}
    unnamed = worker.public.post(path, json=body)
    named = worker.public.post(path, json={**body, "model": "policy"})

    assert unnamed.json() == named.json()
    assert refused(worker, path, **{**body, "model": "other"})[0] == 404


def test_text_parts_are_joined_by_line_ends(worker: WorkerProcess) -> None:
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "fleet"}]

    assert tokens_of(worker, messages=[{"role": "user", "content": parts}]) == tokens_of(
        worker, messages=[{"role": "user", "content": "the\nfleet"}]
    )


def test_a_template_that_changes_the_continued_message_gets_a_clear_400(
    worker: WorkerProcess,
) -> None:
    status, message = refused(
        worker,
        "/tokenize",
        messages=[{"role": "assistant", "content": "a < b"}],
        chat_template="{{ messages[0]['content'] | e }}",
        add_generation_prompt=False,
        continue_final_message=True,
    )

    assert status == 400
    assert "final message does not appear in the chat" in message


@pytest.mark.parametrize("path", ["/tokenize", "/v1/tokenize"])
def test_tokenizing_is_served_at_the_root_and_below_v1(worker: WorkerProcess, path: str) -> None:
    tokens = tokens_of(worker, path, prompt="the fleet")

    assert tokens == tokens_of(worker, prompt="the fleet")
    back = must(worker, path.replace("tokenize", "detokenize"), tokens=tokens)
    assert "the fleet" in back["prompt"]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="as it is"),
        pytest.param({"add_generation_prompt": False}, id="no beginning of a reply"),
        pytest.param({"chat_template_kwargs": {"x": 1}}, id="arguments of the template"),
        pytest.param({"add_special_tokens": True}, id="special tokens"),
    ],
)
def test_messages_are_tokenized_as_generation_reads_them(
    worker: WorkerProcess, home: str, options: Json
) -> None:
    body = {"messages": MESSAGES, **options}
    generated = must(worker, CHAT, **body, return_token_ids=True, max_tokens=1)

    assert generated["prompt_token_ids"] == tokens_of(worker, **body)


def test_a_prompt_is_tokenized_as_generation_reads_it(worker: WorkerProcess, home: str) -> None:
    generated = must(worker, COMPLETION, prompt="the fleet", return_token_ids=True, max_tokens=1)

    assert generated["choices"][0]["prompt_token_ids"] == tokens_of(worker, prompt="the fleet")


def test_tokenizing_needs_no_open_latch(worker: WorkerProcess, home: str) -> None:
    worker.must("fence", reason="a test")

    assert tokens_of(worker, prompt="the fleet")
    assert ask(worker, CHAT, messages=MESSAGES).status_code == 429
