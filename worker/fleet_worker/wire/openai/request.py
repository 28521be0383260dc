"""A chat or completion as OpenAI's clients ask for it, with what vLLM would overlook refused."""

from __future__ import annotations

from fleet_worker.core.routes import dialect_of
from fleet_worker.wire.errors import bad_request
from fleet_worker.wire.openai.reply import reply_of
from fleet_worker.wire.surface import Facts, Forward, Json, Reply
from fleet_worker.wire.tokens.reply import experts_of
from fleet_worker.wire.tokens.request import (
    asked_of,
    asking_for_ids,
    checked_ids,
    explained,
)

# Keys of the token path that belong to another route: vLLM ignores them here without a word.
_ELSEWHERE = ("token_ids", "prompt_token_ids", "sampling_params", "content_parts", "features")
# What a request says by itself; the template's arguments are silently overridden by it.
TEMPLATE_KEYS = ("add_generation_prompt", "continue_final_message")


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Ask for ids where log-probabilities are asked for; everything else goes as it came."""
    check_keys(path, body)
    if path == "/v1/completions":
        for prompt in _prompts_of_ids(body.get("prompt")):
            checked_ids(prompt, facts, "prompt")
    asked = asked_of(body)
    if not asked.logprobs:
        patch, refusal = experts_of(body, facts), explained(body, facts)
        return Forward(path, reply=Reply(dialect_of(path), patch=patch, refusal=refusal))
    return Forward(path, asking_for_ids(body, logprobs=True), reply_of(body, asked, facts))


def check_keys(path: str, body: Json) -> None:
    """Make sure that nothing in the request would be overlooked.

    Errors:
        WireError: 400, naming the key.
    """
    for key in _ELSEWHERE:
        if body.get(key) is not None:
            raise bad_request(f"{path} takes no {key}: /inference/v1/generate does", key)
    arguments = body.get("chat_template_kwargs")
    for key in TEMPLATE_KEYS:
        if isinstance(arguments, dict) and key in arguments:
            raise bad_request(
                f"{key} is a field of the request; in chat_template_kwargs it would be overridden",
                f"chat_template_kwargs.{key}",
            )


def _prompts_of_ids(prompt: object) -> list[object]:
    """Those of a completion's prompts that are given as ids: one list, or a list of lists."""
    if not isinstance(prompt, list) or not prompt:
        return []
    if type(prompt[0]) is int:
        return [prompt]
    return [each for each in prompt if isinstance(each, list)]
