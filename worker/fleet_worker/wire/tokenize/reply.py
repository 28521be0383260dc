"""The reply of vLLM's tokenizer routes goes out as it is."""

from __future__ import annotations

from fleet_worker.wire.surface import Reply


def reply_of() -> Reply:
    """What becomes of the reply: nothing."""
    return Reply()
