"""Dynamo's `nvext` on chats and completions: a prompt of tokens, and data of the engine in the reply.

A requested list may be empty (a completion without tokens). If it is missing in the engine's reply,
the client gets an error before any part of the reply.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleet_worker.gateway.tokens.reply import TokenReply, experts_of
from fleet_worker.gateway.tokens.request import (
    COMPLETIONS,
    Asked,
    asked_of,
    asking_for_ids,
    chat_of_tokens,
    check_single,
    checked_ids,
    one_of,
)
from fleet_worker.gateway.translate.openai import check_keys
from fleet_worker.gateway.translation import Facts, Forward, Json, Reply
from fleet_worker.http.asgi import bad_request, broken_reply

EXTRA_FIELDS = frozenset(
    {
        "completion_token_ids",
        "engine_data",
        "prompt_logprobs",
        "prompt_token_ids",
        "routed_experts",
        "stop_reason",
        "timing",
    }
)


class NvextReply(TokenReply):
    """A chat's or a completion's reply with `nvext`."""

    def __init__(
        self,
        asked: Asked,
        facts: Facts,
        supplied: Sequence[int] | None,
        extra_fields: Sequence[str],
        *,
        began: float,
    ) -> None:
        """See `TokenReply`.

        Args:
            asked: What the client wants to see in the reply itself.
            facts: Facts about the model.
            supplied: The prompt, if it came as tokens.
            extra_fields: What the client wants in `nvext`.
            began: When the request came, in monotonic seconds.
        """
        super().__init__(asked, facts, supplied)
        self._extra_fields = extra_fields
        self._began = began

    def whole(self, reply: Json) -> Json:
        """Return a whole reply with the fields that the request names in `nvext`."""
        if not self._extra_fields:
            return super().whole(reply)
        # Read them before the base class removes fields that the client did not request.
        data = _Data(reply)
        extension = {name: self._field(name, data) for name in self._extra_fields}
        reply = super().whole(reply)
        reply["nvext"] = extension
        return reply

    def _field(self, name: str, data: _Data) -> Any:
        match name:
            case "engine_data":
                return {
                    "completion_token_ids": data.completion_ids(),
                    "completion_logprobs": data.completion_logprobs(),
                    "prompt_token_ids": data.prompt_ids(),
                    "routed_experts": data.choice.get("routed_experts"),
                }
            case "completion_token_ids":
                return data.completion_ids()
            case "prompt_token_ids":
                return data.prompt_ids()
            case "prompt_logprobs":
                return data.prompt_logprobs()
            case "timing":
                seconds = time.monotonic() - self._began
                return {"total_time_ms": round(seconds * 1000, 3)}
            case _:  # routed_experts, stop_reason
                return data.choice.get(name)


class _Data:
    """The engine's data in a reply of one choice."""

    def __init__(self, reply: Json) -> None:
        choices = reply.get("choices") or []
        if len(choices) != 1:
            raise broken_reply(f"the engine's reply has {len(choices)} choices, not one")
        self._reply = reply
        self.choice: Json = choices[0]

    def completion_ids(self) -> list[int]:
        ids = self.choice.get("token_ids")
        if ids is None:
            raise broken_reply("the engine's reply has no token ids")
        return list(ids)

    def prompt_ids(self) -> list[int]:
        for place in (self._reply, self.choice):
            ids = place.get("prompt_token_ids")
            if ids is not None:
                return list(ids)
        raise broken_reply("the engine's reply has no prompt ids")

    def completion_logprobs(self) -> list[float]:
        """One a token; an entry without a value keeps its place."""
        logprobs = self.choice.get("logprobs")
        if logprobs is None:
            raise broken_reply("the engine's reply has no log-probabilities")
        if "content" in logprobs:
            values = [entry.get("logprob") for entry in logprobs["content"]]
        else:
            values = list(logprobs["token_logprobs"])
        return [0.0 if value is None else value for value in values]

    def prompt_logprobs(self) -> list[Any] | None:
        for place in (self._reply, self.choice):
            found: list[Any] | None = place.get("prompt_logprobs")
            if found is not None:
                return found
        return None


_PARAM = "nvext.token_data"
_STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


class AgentHints(BaseModel):
    """The client's hints about the priority of the request."""

    model_config = _STRICT
    priority: int | None = None


class Nvext(BaseModel):
    """The extension object. Unknown keys are errors."""

    model_config = _STRICT
    token_data: list[int] | None = None
    extra_fields: list[str] = Field(default_factory=list)
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    agent_hints: AgentHints = AgentHints()
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] | None = None


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Move the fields of `nvext` to where vLLM reads them, and request the fields for the reply."""
    check_keys(path, body)
    extension = _parsed(body["nvext"])
    if body.get("stream") and extension.extra_fields:
        raise bad_request(
            "nvext.extra_fields is not supported with stream: true", "nvext.extra_fields"
        )
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
    asked = asked_of(path, request)
    if asked.echoes:  # the lists would have the prompt's tokens, too
        raise bad_request("echo is not supported with nvext", "echo")
    ids = None
    if extension.token_data is not None:
        if request.get("tokens") is not None:
            raise bad_request(f"tokens and {_PARAM} are mutually exclusive", "tokens")
        ids = checked_ids(extension.token_data, facts, _PARAM)
        request = _with_prompt(path, request, ids)
    elif extension.extra_fields:
        check_single(request, "nvext.extra_fields")
    if "engine_data" in extension.extra_fields and not asked.logprobs:
        request["logprobs"] = 0 if path == COMPLETIONS else True
    wants_logprobs = asked.logprobs or "engine_data" in extension.extra_fields
    reply = NvextReply(asked, facts, ids, extension.extra_fields, began=time.monotonic())
    return Forward(
        path,
        asking_for_ids(request, logprobs=wants_logprobs),
        Reply(patch=experts_of(request, facts), whole=reply.whole, chunk=reply.chunk),
    )


def _with_prompt(path: str, request: Json, ids: list[int]) -> Json:
    if path != COMPLETIONS:
        return chat_of_tokens(request, ids, _PARAM)
    check_single(request, _PARAM)
    if request.get("prompt") not in (None, "", [], ids):
        raise bad_request(f"prompt and {_PARAM} differ; send only one", "prompt")
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
                f"nvext.extra_fields: unknown field {name}; known fields: {known}",
                "nvext.extra_fields",
            )
    return parsed
