"""A chat or completion with `nvext`, as vLLM takes it."""

from __future__ import annotations

import time
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet_worker.wire.errors import bad_request
from fleet_worker.wire.nvext.reply import EXTRA_FIELDS, NvextReply
from fleet_worker.wire.openai.request import check_keys
from fleet_worker.wire.surface import Facts, Forward, Json, Reply
from fleet_worker.wire.tokens.reply import experts_of
from fleet_worker.wire.tokens.request import (
    asked_of,
    asking_for_ids,
    chat_of_tokens,
    check_single,
    checked_ids,
    one_of,
)

_PARAM = "nvext.token_data"
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


class AgentHints(BaseModel):
    """What the client knows of the request's urgency."""

    model_config = _STRICT
    priority: int | None = None


class Nvext(BaseModel):
    """The extension object; unknown keys are errors."""

    model_config = _STRICT
    token_data: list[int] | None = None
    extra_fields: list[str] = Field(default_factory=list)
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    agent_hints: AgentHints = AgentHints()
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] | None = None


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Put what stands in `nvext` where vLLM reads it, and ask for what the client wants back."""
    check_keys(path, body)
    extension = _parsed(body["nvext"])
    if body.get("stream") and extension.extra_fields:
        raise bad_request("nvext.extra_fields cannot be had of a stream", "nvext.extra_fields")
    request = one_of(
        {key: value for key, value in body.items() if key != "nvext"},
        (
            ("cache_salt", extension.cache_salt),
            ("priority", extension.agent_hints.priority),
            ("routed_experts_prompt_start", extension.routed_experts_prompt_start),
        ),
    )
    if "prompt_logprobs" in extension.extra_fields and request.get("prompt_logprobs") is None:
        raise bad_request(
            "nvext.extra_fields names prompt_logprobs, but the request does not ask for them",
            "prompt_logprobs",
        )
    asked = asked_of(request)
    ids = None
    if extension.token_data is not None:
        if request.get("tokens") is not None:
            raise bad_request(f"tokens stand beside {_PARAM}", "tokens")
        ids = checked_ids(extension.token_data, facts, _PARAM)
        request = _with_prompt(path, request, ids)
    elif extension.extra_fields:
        check_single(request, "nvext.extra_fields")
    if "engine_data" in extension.extra_fields and not asked.logprobs:
        request["logprobs"] = 0 if path == "/v1/completions" else True
    wants_logprobs = asked.logprobs or "engine_data" in extension.extra_fields
    reply = NvextReply(asked, facts, ids, extension.extra_fields, began=time.monotonic())
    return Forward(
        path,
        asking_for_ids(request, logprobs=wants_logprobs),
        Reply(patch=experts_of(request, facts), whole=reply.whole, chunk=reply.chunk),
    )


def _with_prompt(path: str, request: Json, ids: list[int]) -> Json:
    if path != "/v1/completions":
        return chat_of_tokens(request, ids, _PARAM)
    check_single(request, _PARAM)
    if request.get("prompt") not in (None, "", [], ids):
        raise bad_request(f"prompt stands beside {_PARAM}", "prompt")
    return {**request, "prompt": ids}


def _parsed(extension: object) -> Nvext:
    try:
        parsed = Nvext.model_validate(extension)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(["nvext", *map(str, first["loc"])])
        raise bad_request(f"{place}: {first['msg']}", place) from error
    for name in parsed.extra_fields:
        if name not in EXTRA_FIELDS:
            known = ", ".join(sorted(EXTRA_FIELDS))
            raise bad_request(
                f"nvext.extra_fields: there is no {name} here; there are {known}",
                "nvext.extra_fields",
            )
    return parsed
