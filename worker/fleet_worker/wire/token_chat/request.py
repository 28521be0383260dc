"""A chat of tokens, as vLLM takes it."""

from __future__ import annotations

from dataclasses import replace

from fleet_worker.wire.errors import bad_request
from fleet_worker.wire.openai.request import check_keys
from fleet_worker.wire.surface import Facts, Forward, Json
from fleet_worker.wire.token_chat.reply import reply_of
from fleet_worker.wire.tokens.request import (
    asked_of,
    asking_for_ids,
    chat_of_tokens,
    checked_ids,
)

_CHAT = "/v1/chat/completions"


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Take `tokens` out of a chat request and make them its prompt."""
    check_keys(path, body)
    if body.get("tokens") is None:
        raise bad_request(f"{path} needs tokens: the prompt's token ids", "tokens")
    ids = checked_ids(body["tokens"], facts, "tokens")
    rest = {key: value for key, value in body.items() if key != "tokens"}
    asked = asked_of(rest)
    if path != _CHAT:  # this route is asked for nothing else
        asked = replace(asked, ids=True)
    chat = asking_for_ids(chat_of_tokens(rest, ids, "tokens"), logprobs=asked.logprobs)
    return Forward(_CHAT, chat, reply_of(rest, asked, facts, ids))
