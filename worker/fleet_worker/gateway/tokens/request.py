"""Tokens in a request: their checks, and the form that vLLM takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fleet_worker.gateway.translation import Facts, Json
from fleet_worker.http.asgi import WireError, bad_request

PLACEHOLDER = {"role": "user", "content": ""}
"""The message of a chat whose prompt comes as tokens. vLLM requires one and does not read it."""

COMPLETIONS = "/v1/completions"

_MEDIA = ("image", "audio", "video", "file")


@dataclass(frozen=True, slots=True)
class Asked:
    """The fields that the client wants in the reply. vLLM gets a request for more.

    Fields:
        ids: `token_ids` and `prompt_token_ids`.
        logprobs: their log-probabilities.
        names_as_ids: `token_id:<id>` as the name of a token.
        echoes: a completion's reply begins with the prompt.
        hides_reasoning: vLLM leaves ids and log-probabilities out while the model thinks.
    """

    ids: bool
    logprobs: bool
    names_as_ids: bool
    echoes: bool
    hides_reasoning: bool

    @property
    def echoes_text(self) -> bool:
        """The reply begins with the prompt's text, which vLLM leaves out if it writes ids."""
        return self.echoes and not self.ids


def asked_of(path: str, body: Json) -> Asked:
    """Return the fields that a chat or completion request wants."""
    logprobs = body.get("logprobs")
    return Asked(
        ids=bool(body.get("return_token_ids")),
        # A completion's `logprobs` is a number, and 0 asks for those of the sampled tokens.
        logprobs=logprobs is not None and logprobs is not False,
        names_as_ids=bool(body.get("return_tokens_as_token_ids")),
        # A chat repeats its last message without log-probabilities.
        echoes=path == COMPLETIONS and bool(body.get("echo")),
        hides_reasoning=body.get("include_reasoning") is False,
    )


def asking_for_ids(body: Json, *, logprobs: bool, ids: bool = True) -> Json:
    """Return the request with the keys that make vLLM write ids.

    Args:
        body: The request.
        logprobs: Whether log-probabilities name their tokens by id.
        ids: Whether the reply has lists of ids.
    """
    return {
        **body,
        "return_token_ids": ids,
        **({"return_tokens_as_token_ids": True} if logprobs else {}),
    }


def checked_ids(ids: Any, facts: Facts, param: str) -> list[int]:
    """Return the prompt if it is valid.

    Errors:
        WireError: 400; it is empty (an absent one is allowed), has an element that is not an id, has an
            unknown id, or is longer than the context.
    """
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int}:
        raise bad_request(f"{param} must be a list of token ids", param)
    if not ids:
        raise bad_request(f"{param} is empty: a prompt has at least one token", param)
    for each in (min(ids), max(ids)):
        if not 0 <= each < facts.id_limit:
            raise bad_request(
                f"token id {each} is out of vocabulary: ids go from 0 to {facts.id_limit - 1}",
                param,
            )
    if len(ids) >= facts.max_length:
        raise overlong(facts, len(ids), param)
    return ids


def overlong(facts: Facts, length: int, param: str) -> WireError:
    """The prompt leaves no room for a token. Clients recognise it by the first words."""
    return bad_request(
        f"this model's maximum context length is {facts.max_length} tokens; the prompt has"
        f" {length}, and one more has to fit",
        param,
    )


def explained(body: Json, facts: Facts) -> Callable[[Json], Json]:
    """Says in the usual words that a prompt leaves no room, where vLLM blames `max_tokens`.

    It computes that there is room for 0 tokens, and then refuses to make 0 tokens.
    """
    asked = [body.get(key) for key in ("max_tokens", "max_completion_tokens")]

    def explain(refusal: Json) -> Json:
        message = str((refusal.get("error") or {}).get("message"))
        if 0 in asked or not message.startswith("max_tokens must be at least 1, got 0"):
            return refusal
        return overlong(facts, facts.max_length, "prompt").as_json()

    return explain


def check_single(body: Json, param: str) -> None:
    """Make sure that one prompt of tokens asks for one choice."""
    if body.get("n") not in (None, 1):
        raise bad_request(f"n must be 1 where {param} is given", "n")


def check_texts(messages: Any, param: str) -> None:
    """Make sure that no message holds what tokens cannot carry."""
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else ():
            kind = str(part.get("type", "")) if isinstance(part, dict) else ""
            if any(medium in kind for medium in _MEDIA):
                raise WireError(
                    400,
                    f"{kind} is not supported with {param}: the token ids are the whole prompt",
                    kind="NotImplementedError",
                    param="messages",
                )


def one_of(body: Json, places: Iterable[tuple[str, Any]]) -> Json:
    """Return the request with alternative fields moved to where vLLM reads them.

    Args:
        body: The request.
        places: Key, and the value of the alternative field, or None.

    Errors:
        WireError: 400, both fields have values and these differ.
    """
    merged = dict(body)
    for key, value in places:
        if value is None:
            continue
        if merged.get(key) is not None and merged[key] != value:
            raise bad_request(f"{key} has two different values in the request", key)
        merged[key] = value
    return merged


def chat_of_tokens(body: Json, ids: Sequence[int], param: str) -> Json:
    """A chat request whose prompt is the ids, as vLLM takes it.

    Source: `kv_transfer_params.prompt_token_ids` of vLLM (`renderers.online_renderer`).

    Errors:
        WireError: 400, the request asks for what only messages can give.
    """
    for key in ("echo", "truncate_prompt_tokens"):
        if body.get(key):
            raise bad_request(f"{key} is not supported with {param}", key)
    if body.get("include_reasoning") is False:
        raise bad_request(
            f"include_reasoning: false would hide tokens where {param} is given",
            "include_reasoning",
        )
    transfer = body.get("kv_transfer_params") or {}
    if not isinstance(transfer, dict):
        raise bad_request("kv_transfer_params must be an object", "kv_transfer_params")
    if "prompt_token_ids" in transfer:
        raise bad_request(
            f"kv_transfer_params.prompt_token_ids and {param} are mutually exclusive",
            "kv_transfer_params",
        )
    check_single(body, param)
    check_texts(body.get("messages"), param)
    return {
        **body,
        "messages": body.get("messages") or [PLACEHOLDER],
        "kv_transfer_params": {**transfer, "prompt_token_ids": list(ids)},
    }
