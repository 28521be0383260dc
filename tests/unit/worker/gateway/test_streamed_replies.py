"""A streamed reply equals the whole one: token names, bytes, offsets and errors."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.fake_server import fake_facts

from fleet_worker.gateway.tokens.reply import TokenReply
from fleet_worker.gateway.tokens.request import COMPLETIONS, asked_of
from fleet_worker.http.asgi import WireError

FACTS = fake_facts()
PROMPT = [5, 6]
CHAT = "/v1/chat/completions"
LETTERS = "aé€\N{GRINNING FACE} \n".encode()
IDS = st.lists(st.sampled_from(sorted({*LETTERS, 255, 257})), max_size=12)
"""Ids are bytes: parts of letters, bytes that no letter has, and an id without text."""
ASKED = st.fixed_dictionaries(
    {
        "logprobs": st.just(1),
        "return_token_ids": st.booleans(),
        "return_tokens_as_token_ids": st.booleans(),
    }
)


def entry(token_id: int) -> dict[str, Any]:
    """A chat's reply with ids, as vLLM writes it."""
    other = {"token": f"token_id:{(token_id + 1) % 256}", "logprob": -2.0, "bytes": None}
    name = {"token": f"token_id:{token_id}", "logprob": -0.5, "bytes": None}
    return {**name, "top_logprobs": [dict(name), other]}


def chat(index: int, ids: Sequence[int], *, key: str, end: str | None) -> dict[str, Any]:
    """A choice of a chat, whole (`message`) or a part of a stream (`delta`)."""
    return {
        "index": index,
        key: {"content": "…"},
        "token_ids": list(ids),
        "logprobs": {"content": [entry(each) for each in ids]},
        "finish_reason": end,
    }


def completion(index: int, ids: Sequence[int], *, end: str | None) -> dict[str, Any]:
    """A choice of a completion, or a part of one."""
    names = [f"token_id:{each}" for each in ids]
    return {
        "index": index,
        "text": "…",
        "token_ids": list(ids),
        "logprobs": {
            "tokens": names,
            "token_logprobs": [-0.5] * len(ids),
            "text_offset": [0] * len(ids),
            "top_logprobs": [{name: -0.5, "token_id:97": -2.0} for name in names],
        },
        "finish_reason": end,
    }


def parts_of(ids: Sequence[int], cuts: Sequence[int]) -> list[Sequence[int]]:
    places = sorted({0, len(ids), *(cut for cut in cuts if cut < len(ids))})
    return [ids[a:b] for a, b in itertools.pairwise(places)] or [ids]


def mixed(streams: list[list[Any]], order: Sequence[int]) -> list[Any]:
    """Events of several choices, as they come: each choice's own in their order."""
    left, found = [list(stream) for stream in streams], []
    for turn in itertools.chain(order, itertools.cycle(range(len(left)))):
        if not any(left):
            return found
        if left[turn % len(left)]:
            found.append(left[turn % len(left)].pop(0))
    return found


def joined(choices: list[dict[str, Any]], index: int) -> dict[str, list[Any]]:
    """Log-probabilities and ids of a choice, put together as a client does."""
    found: dict[str, list[Any]] = {}
    for choice in choices:
        if choice["index"] != index:
            continue
        found.setdefault("ids", []).extend(choice["token_ids"] or ())
        for key, values in choice["logprobs"].items():
            found.setdefault(key, []).extend(values)
    return found


@settings(max_examples=100)
@given(
    st.lists(st.tuples(IDS, st.lists(st.integers(1, 12), max_size=4)), min_size=1, max_size=3),
    st.lists(st.integers(0, 2), max_size=12),
    ASKED,
    st.sampled_from(["chat", "completion"]),
)
def test_a_stream_in_any_order_has_the_token_names_of_the_whole_reply(
    answers: list[tuple[list[int], list[int]]], order: list[int], asks: dict[str, Any], kind: str
) -> None:
    def made(index: int, ids: Sequence[int], *, key: str, end: str | None) -> dict[str, Any]:
        if kind == "completion":
            return completion(index, ids, end=end)
        return chat(index, ids, key=key, end=end)

    streams = []
    for index, (ids, cuts) in enumerate(answers):
        parts = parts_of(ids, cuts)
        ends = [None] * (len(parts) - 1) + ["stop"]
        streams.append(
            [made(index, p, key="delta", end=e) for p, e in zip(parts, ends, strict=True)]
        )
    usage = {"completion_tokens": sum(len(ids) for ids, _ in answers)}
    asked = asked_of(COMPLETIONS if kind == "completion" else CHAT, asks)
    streaming = TokenReply(asked, FACTS)
    chunks = [streaming.chunk({"choices": [event]}) for event in mixed(streams, order)]
    last = streaming.chunk({"choices": [], "usage": usage})
    whole = TokenReply(asked, FACTS).whole(
        {
            "choices": [
                made(n, ids, key="message", end="stop") for n, (ids, _) in enumerate(answers)
            ],
            "usage": usage,
        }
    )

    assert last == {"choices": [], "usage": usage}
    streamed = [choice for chunk in chunks for choice in chunk["choices"]]
    for index, (ids, _) in enumerate(answers):
        put_together = joined(streamed, index)
        assert put_together == joined(whole["choices"], index)
        assert put_together["ids"] == (ids if asks["return_token_ids"] else [])


@settings(max_examples=60)
@given(IDS.filter(bool), st.lists(st.integers(1, 12), max_size=4))
def test_offsets_are_positions_in_the_clients_text(ids: list[int], cuts: list[int]) -> None:
    """Only whole letters count: the text so far is as long as the offset says."""
    reply = TokenReply(asked_of(COMPLETIONS, {"logprobs": 0}), FACTS)
    letters = [each for each in ids if each < 128]
    offsets, names = [], []
    for part in parts_of(letters, cuts):
        (choice,) = reply.chunk({"choices": [completion(0, part, end=None)]})["choices"]
        offsets += choice["logprobs"]["text_offset"]
        names += choice["logprobs"]["tokens"]

    text = bytes(letters).decode()
    assert [text[offset] for offset in offsets] == list(text) == names


BREAKS: list[Any] = [
    pytest.param(lambda c: c["token_ids"].pop(), id="an id is missing"),
    pytest.param(lambda c: c["token_ids"].append(97), id="an id too many"),
    pytest.param(lambda c: c["token_ids"].reverse(), id="the ids in another order"),
    pytest.param(lambda c: c.update(token_ids=None), id="no ids"),
    pytest.param(lambda c: drop_first(c["logprobs"]), id="a log-probability is missing"),
    pytest.param(lambda c: rename_last(c["logprobs"]), id="one of another token"),
    pytest.param(lambda c: rename_last(c["logprobs"], "é"), id="a name that is a text"),
]


def drop_first(logprobs: dict[str, Any]) -> None:
    for values in logprobs.values():
        values.pop(0)


def rename_last(logprobs: dict[str, Any], name: str = "token_id:99") -> None:
    if "content" in logprobs:
        logprobs["content"][-1]["token"] = name
    else:
        logprobs["tokens"][-1] = name


@pytest.mark.parametrize("damage", BREAKS)
@pytest.mark.parametrize("kind", ["chat", "completion"])
@pytest.mark.parametrize("streams", [False, True], ids=["whole", "streamed"])
def test_an_inconsistent_reply_is_refused_streamed_or_whole(
    damage: Any, kind: str, streams: bool
) -> None:
    ids = [97, 98, 98]
    key = "delta" if streams else "message"
    good = (
        completion(0, ids, end="stop") if kind == "completion" else chat(0, ids, key=key, end="x")
    )
    bad = copy.deepcopy(good)
    damage(bad)
    usage = {"completion_tokens": 3}

    def give(choice: dict[str, Any]) -> None:
        reply = TokenReply(asked_of(COMPLETIONS, {"logprobs": 1, "return_token_ids": True}), FACTS)
        if streams:
            reply.chunk({"choices": [choice]})
            reply.chunk({"choices": [], "usage": usage})
        else:
            reply.whole({"choices": [choice], "usage": usage})

    give(copy.deepcopy(good))
    with pytest.raises(WireError) as refused:
        give(bad)
    assert refused.value.status == 500


@pytest.mark.parametrize(
    ("place", "prompt", "fits"),
    [
        ("reply", PROMPT, True),
        ("reply", [5], False),
        ("reply", [5, 6, 7], False),
        ("reply", [6, 5], False),
        ("reply", None, False),
        ("choice", PROMPT, True),
        ("choice", [], False),
    ],
)
def test_a_reply_to_another_prompt_is_refused(
    place: str, prompt: list[int] | None, fits: bool
) -> None:
    choice = completion(0, [97], end="stop")
    reply: dict[str, Any] = {"choices": [choice], "usage": {"completion_tokens": 1}}
    (reply if place == "reply" else choice)["prompt_token_ids"] = prompt
    tokens = TokenReply(
        asked_of(COMPLETIONS, {"return_token_ids": True, "logprobs": 0}), FACTS, PROMPT
    )
    if fits:
        assert tokens.whole(reply)["choices"][0]["token_ids"] == [97]
        return
    with pytest.raises(WireError, match="did not read the tokens"):
        tokens.whole(reply)


@pytest.mark.parametrize("prompt", [[5], [5, 6, 7], []])
def test_a_stream_with_another_prompt_ends_at_once(prompt: list[int]) -> None:
    tokens = TokenReply(asked_of(CHAT, {"return_token_ids": True}), FACTS, PROMPT)
    opening = {"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}
    with pytest.raises(WireError, match="did not read the tokens"):
        tokens.chunk({"choices": [opening], "prompt_token_ids": prompt})


@pytest.mark.parametrize(
    ("hidden", "raises"),
    [
        pytest.param({"delta": {"content": "a"}, "finish_reason": None}, False, id="it opens"),
        pytest.param({"delta": {"content": "a"}, "finish_reason": "stop"}, True, id="it ends"),
        pytest.param({"message": {"content": "a"}, "finish_reason": None}, True, id="it is whole"),
        pytest.param(
            {"delta": {}, "finish_reason": None, "logprobs": {"content": []}},
            True,
            id="it has log-probabilities",
        ),
    ],
)
def test_only_an_opening_event_may_lack_ids(hidden: dict[str, Any], raises: bool) -> None:
    choice = {"index": 0, "token_ids": None, "logprobs": None, **hidden}
    seen = TokenReply(asked_of(CHAT, {"logprobs": True}), FACTS)
    blind = TokenReply(asked_of(CHAT, {"logprobs": True, "include_reasoning": False}), FACTS)
    blind.chunk({"choices": [copy.deepcopy(choice)]})
    if not raises:
        seen.chunk({"choices": [choice]})
        return
    with pytest.raises(WireError, match="no token ids"):
        seen.chunk({"choices": [choice]})
