"""A worker over a fake engine, with LoRA adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.worker_harness import WorkerHarness

from fleet_worker.errors import Refusal
from fleet_worker.protocol import AdapterRemoval, AdapterRequest, Source


class LoraHarness:
    """A worker with slots for two versions of LoRA adapters."""

    def __init__(self, harness: WorkerHarness) -> None:
        self.harness = harness
        harness.agent.adapters._slots = 2
        harness.agent.adapters.max_rank = 8

    def write(self, folder: str, *, seed: int = 1, **options: Any) -> Path:
        return write_adapter(
            self.harness.root / folder, seed=seed, modules=TINY_MODULES, rank=2, **options
        )

    async def put(self, version: str, path: Path, *, name: str = "tuned", **body: Any) -> None:
        source = Source(path=str(path))
        request = AdapterRequest(version=version, source=source, epoch=self.harness.epoch(), **body)
        await self.harness.agent.put_adapter(name, request)

    async def remove(self, name: str = "tuned") -> None:
        await self.harness.agent.remove_adapter(name, AdapterRemoval(epoch=self.harness.epoch()))

    async def refused(self, version: str, path: Path, **body: Any) -> Refusal:
        with pytest.raises(Refusal) as refusal:
            await self.put(version, path, **body)
        return refusal.value

    @property
    def private(self) -> Path:
        """The folder of the files that the engine reads."""
        return self.harness.root / "private"

    @property
    def in_slots(self) -> list[str]:
        return sorted(self.harness.engine.adapters.values())
