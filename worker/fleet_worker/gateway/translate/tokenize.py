"""`/tokenize` and `/detokenize`, at the root and below `/v1`.

vLLM serves them at the root, where its clients find them by cutting `/v1` off their base URL. An API
gateway in front may pass only `/v1`.
"""

from __future__ import annotations

from typing import Any

from fleet_worker.gateway.translate.openai import check_template_arguments
from fleet_worker.gateway.translation import Facts, Forward, Json
from fleet_worker.http.asgi import WireError, bad_request


def tokenize(_path: str, body: Json, facts: Facts) -> Forward:
    """Check a request for tokens, and write out every default for vLLM."""
    given = [key for key in ("prompt", "messages") if body.get(key) is not None]
    if len(given) != 1:
        found = "both are given" if given else "neither is given"
        raise bad_request(f"one of prompt and messages is needed; {found}", "prompt")
    request = {**body, "model": model_of(body, facts)}
    request.pop("prompt" if given == ["messages"] else "messages", None)
    if given == ["messages"]:
        _check_template(request)
        request.setdefault("add_generation_prompt", True)
        request.setdefault("continue_final_message", False)
    # Messages get their special tokens from the template, a prompt from the tokenizer.
    if request.get("add_special_tokens") is None:
        request["add_special_tokens"] = given == ["prompt"]
    return Forward("/tokenize", request)


def detokenize(_path: str, body: Json, facts: Facts) -> Forward:
    """Check a request for text. vLLM would silently drop unknown ids."""
    tokens = body.get("tokens")
    if not isinstance(tokens, list) or any(type(each) is not int for each in tokens):
        raise bad_request("tokens must be a list of token ids", "tokens")
    for token_id in dict.fromkeys(tokens):
        if not facts.vocabulary.knows(token_id):
            raise bad_request(f"token id {token_id} is not in the vocabulary", "tokens")
    return Forward("/detokenize", {**body, "model": model_of(body, facts)})


def model_of(body: Json, facts: Facts) -> Any:
    """Return the model of a request: the named one, or the only one.

    Errors:
        WireError: 404, there is no such model; 400, there are several and none is named.
    """
    name, names = body.get("model"), list(facts.names())
    if name is None:
        if len(names) > 1:
            raise bad_request(f"several models are served, name one: {', '.join(names)}", "model")
        return names[0]
    if name not in names:
        raise WireError(
            404,
            f"there is no model {name!r}; there is {', '.join(names)}",
            kind="NotFoundError",
            param="model",
        )
    return name


def _check_template(request: Json) -> None:
    if request.get("continue_final_message") and request.get("add_generation_prompt", True):
        raise bad_request(
            "add_generation_prompt (default true) and continue_final_message are mutually exclusive",
            "continue_final_message",
        )
    check_template_arguments(request)
