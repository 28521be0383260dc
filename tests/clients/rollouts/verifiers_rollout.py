"""`verifiers` 0.4: the train client with its turns stitched, and the eval client."""

from __future__ import annotations

import asyncio
from typing import Any

from meeting import (
    BASE_URL,
    KEY_VARIABLE,
    MAX_TOKENS,
    MODEL,
    SAMPLING,
    TOKENIZER,
    Stamps,
    tell,
)
from renderers import Qwen3RendererConfig
from verifiers.v1.clients import EvalClient, EvalClientConfig, TrainClient, TrainClientConfig
from verifiers.v1.dialects.chat import ChatDialect
from verifiers.v1.graph import prepare_turn
from verifiers.v1.trace import Trace
from verifiers.v1.types import SamplingConfig, UserMessage


def trace() -> Any:
    """The graph of one rollout, without the task and the agent that it usually belongs to."""
    return Trace.model_construct(nodes=[], tools=[], calls=[], id="a-rollout")


async def train() -> None:
    client = TrainClient(
        TrainClientConfig(
            base_url=BASE_URL,
            api_key_var=KEY_VARIABLE,
            renderer_model_name=TOKENIZER,
            renderer=Qwen3RendererConfig(enable_thinking=False),
        )
    )
    stamps = Stamps()
    stamps.watch(client.client._client)
    rollout, messages = trace(), [UserMessage(content="one")]
    for number, text in enumerate(("two", "three", "four")):
        sampling = SamplingConfig(**SAMPLING, max_tokens=MAX_TOKENS, cache_salt=str(number))
        turn = prepare_turn(rollout, messages)
        response = await client.get_response(
            ChatDialect(), {"model": MODEL}, sampling, session_id="a-rollout", turn=turn
        )
        tokens: Any = response.tokens
        tell(
            turn=f"train {number}",
            prompt_ids=list(tokens.prompt_ids),
            completion_ids=list(tokens.completion_ids),
            logprobs=[float(each) for each in tokens.completion_logprobs],
            bridged=tokens.bridged,
            stamps=stamps.seen[-1],
        )
        turn.commit(response)
        messages += [response.message, UserMessage(content=text)]
    await client.close()


async def evaluate() -> None:
    client = EvalClient(EvalClientConfig(base_url=BASE_URL, api_key_var=KEY_VARIABLE))
    stamps = Stamps()
    stamps.watch(client.client)
    messages: list[Any] = [{"role": "user", "content": "one"}]
    for number, text in enumerate(("two", "three")):
        body = {
            **SAMPLING,
            "model": MODEL,
            "messages": messages,
            "logprobs": True,
            "return_token_ids": True,
            "max_completion_tokens": MAX_TOKENS,
        }
        response = await client.get_response(ChatDialect(), body, SamplingConfig())
        raw: Any = response.raw
        choice = raw["choices"][0]
        tell(
            turn=f"eval {number}",
            prompt_ids=raw["prompt_token_ids"],
            completion_ids=choice["token_ids"],
            logprobs=[entry["logprob"] for entry in choice["logprobs"]["content"]],
            weight_versions=choice["weight_versions"],
            stamps=stamps.seen[-1],
        )
        messages += [choice["message"], {"role": "user", "content": text}]
    relay = await client.relay(
        ChatDialect(), {"model": MODEL, "messages": messages, "stream": True, "max_tokens": 4}
    )
    # A chunk is what one read gave: on a busy machine several events.
    stream = b"".join([chunk async for chunk in relay.chunks])
    events = [event for event in stream.split(b"\n\n") if event.strip()]
    await relay.close()
    tell(turn="relay", events=len(events), last=events[-1].decode(), stamps=stamps.seen[-1])
    await client.close()


asyncio.run(train())
asyncio.run(evaluate())
