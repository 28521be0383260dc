"""Real stagers for tests of a worker in one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

from tests.support.tiny import TinyInspector

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stager, Stagers


class NotedStagers(Stagers):
    """Notes the stagers that passes take; see `InspectorWithStagers`."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[Stager] = []
        self.on_take: Callable[[Stager], object] = lambda _: None

    def take(self) -> Stager:
        stager = super().take()
        self.on_take(stager)
        self.taken.append(stager)
        return stager


class InspectorWithStagers(TinyInspector):
    """Reads the bytes in stagers."""

    def __init__(self) -> None:
        super().__init__()
        self.stagers = NotedStagers()

    @property
    def taken(self) -> list[Stager]:
        """The stagers that read or have read."""
        return self.stagers.taken

    def on_take(self, do: Callable[[Stager], object]) -> None:
        """Do something to each stager before its request, from now on."""
        self.stagers.on_take = do

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
