"""The end of the process: it first gets no more requests, and then ends those that wait."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fleet_api.loop_time import measured
from fleet_api.problems import busy

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """Fields:
    stopping: SIGTERM was received; the Service should send no more requests.
    ending: requests that wait are answered now.
    """

    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    ending: asyncio.Event = field(default_factory=asyncio.Event)

    def not_ready(self) -> str:
        """Why this replica is not ready; empty if it is."""
        return "this replica is stopping" if self.stopping.is_set() else ""

    async def until_ending(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of the work. Errors: those of the work; Problem 503 if the process ends first."""
        task = asyncio.ensure_future(measured(work))
        ending = asyncio.ensure_future(self.ending.wait())
        try:
            await asyncio.wait({task, ending}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
        finally:
            ending.cancel()
            task.cancel()
            await asyncio.wait({task, ending})
        raise busy(
            "Stopping", "this replica is stopping; send the request again, and another one answers"
        )
