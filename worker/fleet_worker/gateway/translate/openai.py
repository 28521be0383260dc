"""vLLM's own chat and completion routes: log-probabilities name their tokens by id, text and bytes.

Keys that vLLM would silently ignore are refused.
"""

from __future__ import annotations

from fleet_worker.gateway.routes import dialect_of
from fleet_worker.gateway.tokens.reply import TokenReply, experts_of
from fleet_worker.gateway.tokens.request import (
    COMPLETIONS,
    Asked,
    asked_of,
    asking_for_ids,
    checked_ids,
    explained,
)
from fleet_worker.gateway.translation import Facts, Forward, Json, Reply
from fleet_worker.http.asgi import bad_request


def reply_of(request: Json, asked: Asked, facts: Facts) -> Reply:
    """Return the changes of a reply with log-probabilities."""
    tokens = TokenReply(asked, facts)
    return Reply(
        patch=experts_of(request, facts),
        whole=tokens.whole,
        chunk=tokens.chunk,
        refusal=explained(request, facts),
    )


# Keys of the token route: vLLM silently ignores them here.
_ELSEWHERE = ("token_ids", "prompt_token_ids", "sampling_params", "content_parts", "features")
# Fields of the request. They silently override the template's arguments.
_TEMPLATE_KEYS = ("add_generation_prompt", "continue_final_message")


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Request ids with the log-probabilities. Everything else is unchanged.

    With the text of an echoed prompt, the ids are only in the names of the tokens.
    """
    check_keys(path, body)
    if path == COMPLETIONS:
        for prompt in _prompts_of_ids(body.get("prompt")):
            checked_ids(prompt, facts, "prompt")
    asked = asked_of(path, body)
    if not asked.logprobs:
        patch, refusal = experts_of(body, facts), explained(body, facts)
        return Forward(path, reply=Reply(dialect_of(path), patch=patch, refusal=refusal))
    request = asking_for_ids(body, logprobs=True, ids=not asked.echoes_text)
    return Forward(path, request, reply_of(body, asked, facts))


def check_keys(path: str, body: Json) -> None:
    """Refuse keys that vLLM would ignore.

    Errors:
        WireError: 400, naming the key.
    """
    for key in _ELSEWHERE:
        if body.get(key) is not None:
            raise bad_request(f"{path} takes no {key}: /inference/v1/generate does", key)
    check_template_arguments(body)


def check_template_arguments(body: Json) -> None:
    """Refuse arguments of the chat template that fields of the request would override.

    Errors:
        WireError: 400, naming the key.
    """
    arguments = body.get("chat_template_kwargs")
    for key in _TEMPLATE_KEYS:
        if isinstance(arguments, dict) and key in arguments:
            raise bad_request(
                f"{key} is a field of the request; in chat_template_kwargs it would be overridden",
                f"chat_template_kwargs.{key}",
            )


def _prompts_of_ids(prompt: object) -> list[object]:
    """Return the prompts of a completion that are ids: one list, or a list of lists."""
    if not isinstance(prompt, list) or not prompt:
        return []
    if type(prompt[0]) is int:
        return [prompt]
    return [each for each in prompt if isinstance(each, list)]
