"""Writes in the background: a write that is cancelled from outside is requested again."""

from __future__ import annotations

import asyncio

from tests.support.waiting import soon

from fleet_operator.errors import Terminal
from fleet_operator.runtime.background_writes import (
    RETRY_SECONDS,
    BackgroundWrites,
    WritesInFlight,
)
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.problems import FleetProblems, Problems

KEY = ("rl", "policy")


async def test_a_cancelled_write_requests_a_reconcile_until_the_operator_stops():
    asked: list[float] = []
    in_flight = WritesInFlight()
    writes = BackgroundWrites(
        KEY,
        FleetProblems(KEY, Problems()),
        Metrics(),
        lambda _, seconds: asked.append(seconds),
        in_flight,
    )

    async def hang() -> None:
        await asyncio.sleep(60)

    (task,) = writes.begin({"status": hang})
    await asyncio.sleep(0)
    task.cancel()
    await soon(lambda: bool(asked))
    assert asked == [RETRY_SECONDS]

    writes.begin({"status": hang})
    await asyncio.sleep(0)
    await in_flight.stop()
    assert asked == [RETRY_SECONDS]


async def test_a_write_that_succeeds_after_a_failure_requests_a_reconcile():
    """The conditions still report the failure."""
    asked: list[float] = []
    problems = FleetProblems(KEY, Problems())
    writes = BackgroundWrites(
        KEY, problems, Metrics(), lambda _, seconds: asked.append(seconds), WritesInFlight()
    )

    async def fail() -> None:
        raise Terminal("403")

    async def succeed() -> None:
        pass

    await asyncio.wait(writes.begin({"status": fail}))
    await soon(lambda: asked == [RETRY_SECONDS])
    await asyncio.wait(writes.begin({"status": succeed}))
    await soon(lambda: asked == [RETRY_SECONDS, 0])
    assert not problems.all()
    (task,) = writes.begin({"status": succeed})
    await task
    await asyncio.sleep(0)
    assert asked == [RETRY_SECONDS, 0]
