"""`verifiers` 0.3: the client that stitches its turns by `/tokenize` and sends tokens to a chat."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from meeting import BASE_URL, KEY_VARIABLE, MAX_TOKENS, MODEL, SAMPLING, Stamps, tell
from verifiers.clients.openai_chat_completions_token_client import (
    OpenAIChatCompletionsTokenClient,
)
from verifiers.types import AssistantMessage, ClientConfig, UserMessage
from verifiers.utils.response_utils import parse_response_tokens


class Warnings(logging.Handler):
    """The client falls back to messages with no more than a line in its log."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def main() -> None:
    client = OpenAIChatCompletionsTokenClient(
        ClientConfig(
            client_type="openai_chat_completions_token",
            api_base_url=BASE_URL,
            api_key_var=KEY_VARIABLE,
            max_retries=0,
            extra_headers_from_state={"X-Session-ID": "example_id"},
        )
    )
    stamps, warnings = Stamps(), Warnings()
    client.logger.addHandler(warnings)
    client.logger.setLevel(logging.DEBUG)
    stamps.watch(client.client._client)
    state: Any = {"trajectory": [], "model": MODEL, "example_id": 7}
    prompt: list[Any] = [UserMessage(content="one")]
    for number, text in enumerate(("two", "three", "four")):
        response = await client.get_response(
            prompt=prompt,
            model=MODEL,
            sampling_args={
                "max_tokens": MAX_TOKENS,
                "temperature": 1.0,
                "extra_body": {k: v for k, v in SAMPLING.items() if k != "temperature"}
                | {"cache_salt": str(number)},
            },
            tools=None,
            state=state,
        )
        tokens: Any = await parse_response_tokens(response)
        tell(
            turn=f"turn {number}",
            prompt_ids=tokens["prompt_ids"],
            completion_ids=tokens["completion_ids"],
            logprobs=tokens["completion_logprobs"],
            warnings=warnings.lines,
            stamps=stamps.seen[-1],
        )
        answer = AssistantMessage(content=response.message.content)
        step = {
            "prompt": list(prompt),
            "completion": [answer],
            "response": response,
            "tokens": tokens,
        }
        state["trajectory"].append(step)
        prompt = [*prompt, answer, UserMessage(content=text)]
    await client.close()


asyncio.run(main())
