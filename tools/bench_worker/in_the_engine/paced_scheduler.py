"""vLLM's own scheduler, but its steps come at the rate of a GPU. The engine's process imports it.

The tiny model makes tokens as fast as the processor allows, so vLLM merges those that its server has
not sent yet, a different number each time. With a steady rate below the server's limit nearly no
tokens are merged, and processor time for each token is comparable.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler

SECONDS_PER_TOKEN = 1 / 3000


# vLLM is in the engine's environment only.
class PacedScheduler(AsyncScheduler):  # type: ignore[misc]
    """Makes 3,000 tokens in a second, over all streams."""

    _next = 0.0

    def schedule(self, *arguments: Any, **options: Any) -> Any:
        """The next step, which begins when the tokens of the one before have had their time."""
        time.sleep(max(0.0, self._next - time.monotonic()))
        step = super().schedule(*arguments, **options)
        self._next = time.monotonic() + SECONDS_PER_TOKEN * len(step.num_scheduled_tokens)
        return step
