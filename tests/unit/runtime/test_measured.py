"""The time in which a tenant's work holds the event loop is counted, whatever the process does meanwhile."""

from __future__ import annotations

import asyncio

import pytest

import fleet_operator.measured
from fleet_operator.measured import LONGEST_STEP_SECONDS, Measured


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [100.0]
    monkeypatch.setattr(fleet_operator.measured, "monotonic", lambda: clock[0])
    return clock


async def test_a_step_without_a_processor_counts_as_long_as_others_wait_for_it(now):
    noted: list[float] = []

    async def work() -> str:
        now[0] += 0.1
        await asyncio.sleep(0)
        now[0] += 3600
        return "done"

    measured = Measured(work(), noted.append)

    assert await measured == "done"
    assert noted == pytest.approx([0.1, LONGEST_STEP_SECONDS])
    assert measured.seconds == pytest.approx(sum(noted))
