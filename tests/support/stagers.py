"""Real stagers for tests of a worker in one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.support.tiny import TinyInspector

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stager, Stagers


class InspectorWithStagers(TinyInspector):
    """Reads the bytes in stagers.

    Fields:
        taken: the stagers that read or have read.
        on_take: called with each stager before its request.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stagers = Stagers()
        self.taken: list[Stager] = []
        self.on_take: Callable[[Stager], object] = lambda _: None
        take = self.stagers.take

        def taking() -> Stager:
            stager = take()
            self.on_take(stager)
            self.taken.append(stager)
            return stager

        self.stagers.take = taking  # type: ignore[method-assign]  # a test looks on

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        reading = StagerPass(self.stagers, checkpoint.casts)
        return checkpoint.read_in(reading, budget=budget, check_cancelled=check_cancelled)

    def leave_memory(self, checkpoint: Checkpoint) -> None:
        checkpoint.leave_memory(StagerPass(self.stagers, None))


def stop(stager: Stager) -> None:
    os.kill(stager.pid, signal.SIGSTOP)


def kill(stager: Stager) -> None:
    os.kill(stager.pid, signal.SIGKILL)
