"""A serving worker with slots for LoRA adapters."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.lora_harness import LoraHarness
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness


@pytest.fixture
async def lora(
    serving: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[LoraHarness]:
    private = tmp_path / "private"
    private.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(private))
    made = LoraHarness(serving)
    yield made
    serving.agent.adapters.close()
    await soon(lambda: list(private.iterdir()) == [])
