"""Chats whose prompt comes as tokens: `/v1/chat/completions/tokens`, and `tokens` of a chat.

Clients that join the turns of a conversation themselves use them: the model then reads exactly the
tokens of its earlier replies. `messages` are only for the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fleet_worker.gateway.tokens.reply import TokenReply, experts_of
from fleet_worker.gateway.tokens.request import (
    Asked,
    asked_of,
    asking_for_ids,
    chat_of_tokens,
    checked_ids,
)
from fleet_worker.gateway.translate.openai import check_keys
from fleet_worker.gateway.translation import Facts, Forward, Json, Reply
from fleet_worker.http.asgi import bad_request


def reply_of(request: Json, asked: Asked, facts: Facts, ids: Sequence[int]) -> Reply:
    """Return the changes of the reply."""
    tokens = TokenReply(asked, facts, ids)
    return Reply(patch=experts_of(request, facts), whole=tokens.whole, chunk=tokens.chunk)


_CHAT = "/v1/chat/completions"


def translate(path: str, body: Json, facts: Facts) -> Forward:
    """Make the `tokens` of a chat request its prompt."""
    check_keys(path, body)
    if body.get("tokens") is None:
        raise bad_request(f"{path} needs tokens: the prompt's token ids", "tokens")
    ids = checked_ids(body["tokens"], facts, "tokens")
    rest = {key: value for key, value in body.items() if key != "tokens"}
    asked = asked_of(path, rest)
    if path != _CHAT:  # the purpose of this route
        asked = replace(asked, ids=True)
    chat = asking_for_ids(chat_of_tokens(rest, ids, "tokens"), logprobs=asked.logprobs)
    return Forward(_CHAT, chat, reply_of(rest, asked, facts, ids))
