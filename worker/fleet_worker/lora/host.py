"""The parts of a worker that the calls about LoRA adapters use."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from typing import Protocol

from fleet_worker.engine.port import Clock, Engine
from fleet_worker.lora.slots import Adapters
from fleet_worker.protocol import Phase


class Host(Protocol):
    """The worker of the LoRA adapters."""

    adapters: Adapters
    asleep: bool
    clock: Clock
    engine: Engine
    lock: asyncio.Lock

    @property
    def phase(self) -> Phase:
        """The worker's phase."""

    def check_holder(self, holder: str) -> None:
        """Refuse with `HeldByAnother` while another holder's lease runs."""

    def memory_left(self) -> int:
        """The memory that is left for checkpoints and LoRA adapters, in bytes."""

    def working(
        self, kind: str, version: str | None = None, *, run_id: str | None = None
    ) -> AbstractContextManager[None]:
        """Show an operation in the state document while it runs."""
