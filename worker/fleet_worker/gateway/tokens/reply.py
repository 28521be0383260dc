"""Tokens in a reply: ids, log-probabilities and usage of equal length, in the client's form."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from fleet_worker.engine.facts import Offsets
from fleet_worker.gateway.tokens.logprobs import LengthError, check_lists, name_entries, name_lists
from fleet_worker.gateway.tokens.request import Asked
from fleet_worker.gateway.tokens.routed_experts import rewritten
from fleet_worker.gateway.translation import Facts, Json
from fleet_worker.http.asgi import bad_request, broken_reply

_START = "routed_experts_prompt_start"


def experts_of(request: Json, facts: Facts) -> Callable[[bytes], bytes] | None:
    """Return the patch that writes routed experts for trainers' clients, if the engine has any.

    Args:
        request: The request for vLLM; of `/inference/v1/generate`, its sampling parameters.
        facts: Facts about the model.

    Errors:
        WireError: 400; the start is not the number of a token.
    """
    if not facts.routes_experts:
        return None
    start = request.get(_START) or 0
    if type(start) is not int or start < 0:
        raise bad_request(f"{_START} must be the number of a token", _START)
    return lambda piece: rewritten(piece, start)


class TokenReply:
    """One reply of a chat or completion route with ids."""

    def __init__(self, asked: Asked, facts: Facts, supplied: Sequence[int] | None = None) -> None:
        """Create one.

        Args:
            asked: The fields that the client wants.
            facts: Facts about the model.
            supplied: The prompt, if it came as tokens: the engine must have read exactly these.
        """
        self._asked = asked
        self._bytes_of = facts.vocabulary.bytes_of
        self._supplied = supplied
        self._offsets: dict[int, Offsets] = defaultdict(Offsets)
        self._seen = 0

    def whole(self, reply: Json) -> Json:
        """A whole reply.

        Errors:
            WireError: 500; the parts of the engine's reply do not match.
        """
        self._change(reply)
        if self._supplied is not None:
            self._check_prompt(reply)
        self._check_usage(reply.get("usage"))
        return self._without_what_was_not_asked(reply)

    def chunk(self, chunk: Json) -> Json:
        """An event of a stream."""
        self._change(chunk)
        if self._supplied is not None and _prompt_in(chunk) is not None:
            self._check_prompt(chunk)
        if not chunk.get("choices"):  # the last event, if the client asked for usage
            self._check_usage(chunk.get("usage"))
        return self._without_what_was_not_asked(chunk)

    def _change(self, reply: Json) -> None:
        try:
            for choice in reply.get("choices") or ():
                self._change_choice(choice)
        except LengthError as error:
            raise broken_reply(f"the engine's reply does not fit together: {error}") from error

    def _change_choice(self, choice: Json) -> None:
        ids, logprobs = choice.get("token_ids"), choice.get("logprobs")
        if ids is None and not self._asked.echoes_text:
            self._check_hidden(choice, logprobs)
            return
        ids = ids or []
        self._seen += len(ids)
        if logprobs is None:
            return
        if "content" in logprobs:
            as_ids = self._asked.names_as_ids
            name_entries(logprobs["content"], ids, self._bytes_of, as_ids=as_ids)
            return
        if not self._asked.echoes:
            check_lists(logprobs, ids)
        if not self._asked.names_as_ids:
            name_lists(logprobs, self._bytes_of, self._offsets[choice.get("index", 0)])

    def _check_hidden(self, choice: Json, logprobs: Any) -> None:
        """Ids are missing: in a stream's opening event, or where the reasoning is hidden."""
        opens = "delta" in choice and choice.get("finish_reason") is None and logprobs is None
        if not opens and not self._asked.hides_reasoning:
            raise broken_reply("the engine's reply has no token ids")

    def _check_prompt(self, reply: Json) -> None:
        if _prompt_in(reply) != list(self._supplied or ()):
            raise broken_reply("the engine did not read the tokens that were sent")

    def _check_usage(self, usage: Json | None) -> None:
        if usage is None or self._asked.hides_reasoning or self._asked.echoes_text:
            return
        if usage.get("completion_tokens") != self._seen:
            raise broken_reply(
                f"{self._seen} token ids, but {usage.get('completion_tokens')} completion tokens"
            )

    def _without_what_was_not_asked(self, reply: Json) -> Json:
        for place in (reply, *(reply.get("choices") or ())):
            for key in ("token_ids", "prompt_token_ids"):
                if not self._asked.ids and key in place:
                    place[key] = None
            if not self._asked.logprobs and "logprobs" in place:
                place["logprobs"] = None
        return reply


def _prompt_in(reply: Json) -> list[int] | None:
    """The prompt's ids: on the reply, or (completions) on each choice."""
    for place in (reply, *(reply.get("choices") or ())):
        ids: list[int] | None = place.get("prompt_token_ids")
        if ids is not None:
            return ids
    return None
