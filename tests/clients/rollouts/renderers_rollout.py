"""`renderers`: messages to tokens and back on the client's side, `generate` in between."""

from __future__ import annotations

import asyncio
from typing import Any

from meeting import BASE_URL, KEY, MAX_TOKENS, MODEL, SAMPLING, TOKENIZER, Stamps, tell
from openai import AsyncOpenAI
from renderers import Qwen3RendererConfig, create_renderer
from renderers.base import load_tokenizer
from renderers.client import generate


async def main() -> None:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    stamps = Stamps()
    stamps.watch(client._client)
    renderer = create_renderer(
        load_tokenizer(TOKENIZER), Qwen3RendererConfig(enable_thinking=False)
    )
    messages: list[Any] = [{"role": "user", "content": "one"}]
    sampling = {**SAMPLING, "max_tokens": MAX_TOKENS}
    prompt_ids = None

    for number, text in enumerate(("two", "three", "four")):
        # Later turns ask for the head of the distribution, too, which a generation knows of.
        result = await generate(
            client=client,
            renderer=renderer,
            messages=messages,
            model=MODEL,
            prompt_ids=prompt_ids,
            sampling_params=sampling | ({"logprobs": 2} if number else {}),
            cache_salt=str(number),
            extra_headers={"X-Session-ID": "a-rollout"},
        )
        tell(
            turn=f"turn {number}",
            prompt_ids=result["prompt_ids"],
            completion_ids=result["completion_ids"],
            logprobs=[float(each) for each in result["completion_logprobs"]],
            weight_versions=result.get("weight_versions"),
            finish_reason=result["finish_reason"],
            top_ids=result.get("completion_top_ids"),
            stamps=stamps.seen[-1],
        )
        answer = {"role": "assistant", "content": result["content"]}
        messages += [answer, {"role": "user", "content": text}]
        bridged = renderer.bridge_to_next_turn(
            result["prompt_ids"], result["completion_ids"], messages[-1:]
        )
        prompt_ids = bridged.token_ids


asyncio.run(main())
