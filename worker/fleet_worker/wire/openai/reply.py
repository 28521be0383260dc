"""The reply of a chat or completion, its tokens named by id, text and bytes."""

from __future__ import annotations

from fleet_worker.wire.surface import Facts, Json, Reply
from fleet_worker.wire.tokens.reply import TokenReply, experts_of
from fleet_worker.wire.tokens.request import Asked, explained


def reply_of(request: Json, asked: Asked, facts: Facts) -> Reply:
    """What becomes of a reply with log-probabilities."""
    tokens = TokenReply(asked, facts)
    return Reply(
        patch=experts_of(request, facts),
        whole=tokens.whole,
        chunk=tokens.chunk,
        refusal=explained(request, facts),
    )
