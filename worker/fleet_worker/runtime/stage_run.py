"""One stage under way: what is asked for, and whether it is still wanted."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason, StageRequest
from fleet_worker.runtime.store_threads import Pulse
from fleet_worker.runtime.weights import Weights


@dataclass(slots=True)
class Running:
    """A stage under way.

    Fields:
        superseded: set once a newer stage has taken over; threads look at it.
        unwanted: done at the same moment; the event loop waits for it.
        checkpoint: what is being read.
    """

    request: StageRequest
    started: float
    unwanted: asyncio.Future[None]
    by_directory: bool = False
    superseded: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=Pulse)
    checkpoint: Checkpoint | None = None
    task: asyncio.Task[Weights] = field(init=False)

    def is_for(self, request: StageRequest) -> bool:
        """Whether this brings what a request asks for."""
        own = self.request
        return (own.version, own.run_id, own.source, own.digest) == (
            request.version,
            request.run_id,
            request.source,
            request.digest,
        )

    def go_on(self) -> None:
        """Note that the store answers; raise `Superseded` once a newer stage has taken over."""
        self.pulse.beat()
        if self.superseded.is_set():
            raise Refusal(
                Reason.SUPERSEDED,
                f"a newer version took over while {self.request.version} was being staged",
            )

    def supersede(self) -> None:
        """A newer stage takes over: what is read is not waited for any more."""
        self.superseded.set()
        if not self.unwanted.done():
            self.unwanted.set_result(None)
