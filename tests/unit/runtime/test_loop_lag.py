"""How late the event loop is, as the metrics show it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from tests.support import virtual_time

from fleet_operator.runtime.loop_lag import SAMPLE_SECONDS, WINDOW_SECONDS, LoopLag
from fleet_operator.runtime.metrics import Metrics

BLOCKED_SECONDS = 0.4


async def test_a_loop_that_stops_is_seen_and_shown():
    lag, metrics = LoopLag(), Metrics()
    metrics.loop_lag.set_function(lag.worst_seconds)
    metrics.loop_busy.set_function(lag.worst_busy_seconds)
    sampling = asyncio.create_task(lag.run())
    await asyncio.sleep(SAMPLE_SECONDS)

    time.sleep(BLOCKED_SECONDS)  # noqa: ASYNC251 - this is what is measured
    await asyncio.sleep(2 * SAMPLE_SECONDS)
    sampling.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await sampling

    assert lag.worst_seconds() >= BLOCKED_SECONDS - SAMPLE_SECONDS
    shown = dict(
        line.rsplit(" ", 1)
        for line in metrics.render().decode().splitlines()
        if line.startswith("rlfleet_event_loop_")
    )
    assert {name: float(value) for name, value in shown.items()} == {
        "rlfleet_event_loop_lag_seconds": lag.worst_seconds(),
        "rlfleet_event_loop_busy_seconds": lag.worst_busy_seconds(),
    }


def test_a_busy_machine_is_distinguished_from_work_that_lasts():
    async def story(used_seconds: float) -> tuple[float, float]:
        used = iter([10.0, 10.0 + used_seconds])
        lag, loop = LoopLag(lambda: next(used, 20.0)), asyncio.get_running_loop()
        sampling = asyncio.create_task(lag.run())
        await asyncio.sleep(SAMPLE_SECONDS / 2)
        loop._selecting.now += BLOCKED_SECONDS  # the clock continues, and nothing runs
        await asyncio.sleep(SAMPLE_SECONDS / 2)
        sampling.cancel()
        return lag.worst_seconds(), lag.worst_busy_seconds()

    late = pytest.approx(BLOCKED_SECONDS - SAMPLE_SECONDS / 2)
    assert virtual_time.run(story(0.01)) == (late, pytest.approx(0.01))
    assert virtual_time.run(story(5.0)) == (late, late)


def test_an_old_lag_is_no_longer_shown():
    async def story() -> tuple[float, float, float]:
        lag, loop = LoopLag(), asyncio.get_running_loop()
        sampling = asyncio.create_task(lag.run())
        await asyncio.sleep(SAMPLE_SECONDS / 2)
        loop._selecting.now += BLOCKED_SECONDS  # the clock continues, and nothing runs
        await asyncio.sleep(SAMPLE_SECONDS)
        soon = lag.worst_seconds()
        await asyncio.sleep(WINDOW_SECONDS)
        still = lag.worst_seconds()
        await asyncio.sleep(WINDOW_SECONDS)
        sampling.cancel()
        return soon, still, lag.worst_seconds()

    soon, still, later = virtual_time.run(story())
    assert soon == pytest.approx(BLOCKED_SECONDS - SAMPLE_SECONDS / 2)
    assert still == soon
    assert later == pytest.approx(0, abs=1e-3)
