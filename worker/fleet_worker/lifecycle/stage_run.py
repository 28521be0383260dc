"""One running stage: its request, and whether a newer stage has superseded it."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.store_threads import Pulse
from fleet_worker.errors import Refusal
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.protocol import Reason, StageRequest


@dataclass(slots=True)
class Running:
    """A running stage.

    Fields:
        superseded: set once a newer stage takes over; read by threads.
        unwanted: done once a newer stage takes over; awaited in the event loop.
        checkpoint: the checkpoint that is being read.
        reads_from: uid of the pod whose worker the bytes come from; None for the store.
    """

    request: StageRequest
    started: float
    unwanted: asyncio.Future[None]
    by_directory: bool = False
    superseded: threading.Event = field(default_factory=threading.Event)
    pulse: Pulse = field(default_factory=Pulse)
    checkpoint: Checkpoint | None = None
    reads_from: str | None = None
    task: asyncio.Task[Weights] = field(init=False)

    def is_for(self, request: StageRequest) -> bool:
        """Whether this stage has the version, run, source and digest of a request."""
        own = self.request
        return (own.version, own.run_id, own.source, own.digest) == (
            request.version,
            request.run_id,
            request.source,
            request.digest,
        )

    def check_cancelled(self) -> None:
        """Record that the store answers; raise `Superseded` once a newer stage has taken over."""
        self.pulse.beat()
        if self.superseded.is_set():
            raise Refusal(
                Reason.SUPERSEDED,
                f"a newer version superseded version {self.request.version} while it was staged",
            )

    def supersede(self) -> None:
        """Let a newer stage take over: the caller stops waiting for this one."""
        self.superseded.set()
        if not self.unwanted.done():
            self.unwanted.set_result(None)
