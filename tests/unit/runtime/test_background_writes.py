"""Writes in the background: a write that is cancelled from outside is requested again."""

from __future__ import annotations

import asyncio

from tests.support.waiting import soon

from fleet_operator.runtime.background_writes import RETRY_SECONDS, BackgroundWrites
from fleet_operator.runtime.metrics import Metrics
from fleet_operator.runtime.problems import Problems

KEY = ("rl", "policy")


async def test_a_cancelled_write_requests_a_reconcile_until_the_operator_stops() -> None:
    asked: list[float] = []
    writes = BackgroundWrites(Problems(), Metrics(), lambda _, seconds: asked.append(seconds))

    async def hang() -> None:
        await asyncio.sleep(60)

    (task,) = writes.begin(KEY, {"status": hang})
    await asyncio.sleep(0)
    task.cancel()
    await soon(lambda: bool(asked))
    assert asked == [RETRY_SECONDS]

    writes.begin(KEY, {"status": hang})
    await asyncio.sleep(0)
    await writes.stop()
    assert asked == [RETRY_SECONDS]
