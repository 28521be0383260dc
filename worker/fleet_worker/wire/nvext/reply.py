"""`nvext` of a reply: what the client asked for of the engine's own data.

Lists that are empty are there (a completion of no tokens); what is absent is an error, before
anything goes out.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from fleet_worker.wire.errors import broken_reply
from fleet_worker.wire.surface import Facts, Json
from fleet_worker.wire.tokens.reply import TokenReply
from fleet_worker.wire.tokens.request import Asked

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
            facts: Of the model.
            supplied: The prompt, if it came as tokens.
            extra_fields: What the client wants in `nvext`.
            began: When the request came, in monotonic seconds.
        """
        super().__init__(asked, facts, supplied)
        self._extra_fields = extra_fields
        self._began = began

    def whole(self, reply: Json) -> Json:
        """A whole reply, with what was asked for in `nvext`."""
        if not self._extra_fields:
            return super().whole(reply)
        # Before the parts that the client did not ask for in the usual places are taken away.
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
