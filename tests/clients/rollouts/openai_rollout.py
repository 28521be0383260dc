"""The `openai` library: chat, streaming, log-probabilities, tools, completions."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from meeting import BASE_URL, KEY, MAX_TOKENS, MODEL, SAMPLING, TOKENIZER, Stamps, tell
from openai import AsyncOpenAI

SAMPLED = {k: v for k, v in SAMPLING.items() if k != "temperature"} | {"return_token_ids": True}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"where": {"enum": ["here", "there"]}},
            "required": ["where"],
            "additionalProperties": False,
        },
    },
}

VOCABULARY = json.loads((Path(TOKENIZER) / "tokenizer.json").read_text())["model"]["vocab"]
END = json.loads((Path(TOKENIZER) / "config.json").read_text())["eos_token_id"]
# JSON may have any amount of white space, and a grammar allows any number of calls: random weights
# write them until no token is left.
ONE_CALL = {str(i): -100 for token, i in VOCABULARY.items() if set(token) & set("ĠĊčĉ")}
ONE_CALL[str(END)] = 100


async def main() -> None:
    client = AsyncOpenAI(base_url=BASE_URL, api_key=KEY, max_retries=0)
    stamps = Stamps()
    stamps.watch(client._client)
    messages: list[Any] = [{"role": "user", "content": "one"}]

    reply = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        logprobs=True,
        max_completion_tokens=MAX_TOKENS,
        extra_body=SAMPLED,
    )
    choice: Any = reply.choices[0]
    tell(
        turn="chat",
        prompt_ids=reply.prompt_token_ids,  # vLLM's field
        completion_ids=choice.token_ids,
        logprobs=[entry.logprob for entry in choice.logprobs.content],
        weight_versions=choice.weight_versions,
        finish_reason=choice.finish_reason,
        message=choice.message.model_dump(exclude_none=True),
        stamps=stamps.seen[-1],
    )

    messages += [choice.message.model_dump(exclude_none=True), {"role": "user", "content": "two"}]
    prompt_ids, ids, logprobs, versions, text = None, [], [], None, ""
    stream = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        logprobs=True,
        max_completion_tokens=MAX_TOKENS,
        stream=True,
        extra_body=SAMPLED,
    )
    async for chunk in stream:
        prompt_ids = getattr(chunk, "prompt_token_ids", None) or prompt_ids
        for each in chunk.choices:
            ids += getattr(each, "token_ids", None) or []
            text += each.delta.content or ""
            logprobs += [e.logprob for e in each.logprobs.content] if each.logprobs else []
            versions = getattr(each, "weight_versions", None) or versions
    tell(
        turn="stream",
        prompt_ids=prompt_ids,
        completion_ids=ids,
        logprobs=logprobs,
        weight_versions=versions,
        stamps=stamps.seen[-1],
    )

    messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "look"}]
    calling = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        logit_bias=ONE_CALL,
        logprobs=True,
        max_completion_tokens=80,
        extra_body={"return_token_ids": True},
    )
    choice = calling.choices[0]
    call = choice.message.tool_calls[0]
    tell(
        turn="tools",
        prompt_ids=calling.prompt_token_ids,  # vLLM's field
        completion_ids=choice.token_ids,
        logprobs=[entry.logprob for entry in choice.logprobs.content],
        weight_versions=choice.weight_versions,
        constrained=True,
        call=call.function.model_dump(),
        stamps=stamps.seen[-1],
    )

    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "nothing"},
    ]
    completion = await client.completions.create(
        model=MODEL,
        prompt=calling.prompt_token_ids,  # vLLM's field
        logprobs=0,
        max_tokens=MAX_TOKENS,
        extra_body=SAMPLED,
    )
    only: Any = completion.choices[0]
    tell(
        turn="completion",
        prompt_ids=only.prompt_token_ids,
        completion_ids=only.token_ids,
        logprobs=only.logprobs.token_logprobs,
        weight_versions=only.weight_versions,
        stamps=stamps.seen[-1],
    )
    after_tools = await client.chat.completions.create(
        model=MODEL,
        messages=messages,
        tools=[TOOL],
        tool_choice="none",
        logprobs=True,
        max_completion_tokens=MAX_TOKENS,
        extra_body=SAMPLED,
    )
    choice = after_tools.choices[0]
    tell(
        turn="after the tool",
        prompt_ids=after_tools.prompt_token_ids,  # vLLM's field
        completion_ids=choice.token_ids,
        logprobs=[entry.logprob for entry in choice.logprobs.content],
        weight_versions=choice.weight_versions,
        stamps=stamps.seen[-1],
    )


asyncio.run(main())
