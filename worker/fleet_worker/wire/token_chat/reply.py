"""The reply to a chat of tokens: a chat's, on the prompt that was sent."""

from __future__ import annotations

from collections.abc import Sequence

from fleet_worker.wire.surface import Facts, Json, Reply
from fleet_worker.wire.tokens.reply import TokenReply, experts_of
from fleet_worker.wire.tokens.request import Asked


def reply_of(request: Json, asked: Asked, facts: Facts, ids: Sequence[int]) -> Reply:
    """What becomes of the reply."""
    tokens = TokenReply(asked, facts, ids)
    return Reply(patch=experts_of(request, facts), whole=tokens.whole, chunk=tokens.chunk)
