"""A token in the middle of a stream takes next to no time of the API server, the limit on a GPU."""

from __future__ import annotations

import itertools
import json
import sys
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_server import FakeChoice, FakePort, ended

from fleet_worker.provenance import changing

CHAT = {"messages": [{"role": "user", "content": "x"}]}
TOKENS = {"token_ids": [1], "sampling_params": {}}
LOGPROBS = {"token_ids": [1], "sampling_params": {"logprobs": 1}}
DEMAND = {"x-weight-version-exact": "base"}


async def calls_of(
    port: FakePort, path: str, outputs: list[list[FakeChoice]], **request: Any
) -> int:
    """How many functions of the worker run for a stream. A generator counts at each step."""
    port.server.prompts = [outputs]
    calls = itertools.count()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and "fleet_worker" in frame.f_code.co_filename:
            next(calls)

    sys.setprofile(count)
    try:
        reply = await port.ask(path, stream=True, **request)
    finally:
        sys.setprofile(None)
    assert reply.text.count('"weight_versions"') == port.server.n, "each end is stamped"
    return next(calls)


def stream_of(tokens: int) -> list[list[FakeChoice]]:
    return [*([[FakeChoice(0)]] * tokens), [ended(0, ("base", 0, 2))]]


@pytest.mark.parametrize(
    ("path", "body", "headers", "most"),
    [
        pytest.param("/v1/completions", {}, {}, 3, id="completions"),
        pytest.param("/v1/completions", {}, DEMAND, 5, id="with a demand"),
        pytest.param("/v1/chat/completions", CHAT, {}, 3, id="chat"),
        pytest.param("/inference/v1/generate", TOKENS, {}, 3, id="generate"),
        pytest.param("/inference/v1/generate", LOGPROBS, {}, 5, id="log-probabilities"),
    ],
)
async def test_a_token_in_the_middle_of_a_stream_takes_a_handful_of_calls(
    port: FakePort, path: str, body: dict[str, Any], headers: dict[str, str], most: int
) -> None:
    few = await calls_of(port, path, stream_of(50), headers=headers, **body)
    many = await calls_of(port, path, stream_of(150), headers=headers, **body)

    assert (many - few) / 100 <= most


async def test_the_body_of_a_request_is_parsed_once(
    port: FakePort, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = []

    def loads(text: bytes) -> Any:
        parsed.append(text)
        return json.loads(text)

    monkeypatch.setattr(changing, "json", SimpleNamespace(loads=loads))
    port.server.prompts = [[[ended(0, ("base", 0, 2))]]]
    named = {"weight_version_exact": "base", "session_params": {"session_id": "a"}}
    await port.client.post("/inference/v1/abort_requests", json={"request_ids": ["before"]})
    parsed.clear()
    reply = await port.ask("/v1/completions", stream=True, **named, request_id="mine")

    assert reply.status_code == 200, reply.text
    assert len(parsed) == 1


async def test_the_end_of_one_choice_does_not_slow_the_others(port: FakePort) -> None:
    port.server.n = 2
    other = [[ended(1, ("base", 0, 2))]]
    few = await calls_of(port, "/v1/completions", other + stream_of(50))
    many = await calls_of(port, "/v1/completions", other + stream_of(150))

    assert (many - few) / 100 <= 3
