"""What a worker notices by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.protocol import Phase
from fleet_worker.runtime.watch import Watch


def watch_of(bench: Bench) -> Watch:
    return Watch(bench.agent, silence_seconds=60, load_seconds=600, end_process=bench.ended.append)


@asynccontextmanager
async def running(watch: Watch) -> AsyncIterator[None]:
    task = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_lease_is_ended_when_its_time_has_come(serving: Bench) -> None:
    async with running(watch_of(serving)):
        await serving.pause(lease=0.02)
        serving.clock.advance(0.02)
        await soon(lambda: serving.agent.phase is Phase.SERVING)

    assert serving.agent.lease_expiries == 1


async def test_a_lease_that_cannot_be_ended_is_tried_again(serving: Bench) -> None:
    serving.engine.failures["resume"] = [untouched()]
    async with running(watch_of(serving)):
        await serving.pause(lease=0.02)
        serving.clock.advance(1)
        await soon(lambda: serving.agent.phase is Phase.SERVING)

    assert serving.engine.calls.count("resume") == 2


async def test_a_dead_engine_ends_the_process(serving: Bench) -> None:
    async with running(watch_of(serving)):
        serving.engine.is_dead = True
        await soon(lambda: serving.ended)

    assert "died" in serving.ended[0]


async def test_a_dead_engine_that_ends_the_server_first_is_named_as_the_reason(
    serving: Bench,
) -> None:
    async with running(watch_of(serving)):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.engine.is_dead = True

    assert serving.ended == ["the engine process died"]


async def test_an_engine_that_answers_keeps_the_worker_alive(serving: Bench) -> None:
    watch = watch_of(serving)
    async with running(watch):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.clock.advance(59)
        assert watch.problem() is None


async def test_an_engine_that_says_nothing_for_too_long_is_a_problem(serving: Bench) -> None:
    serving.engine.gates["ping"] = asyncio.Event()
    watch = watch_of(serving)
    async with running(watch):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.clock.advance(61)

        assert "not answered" in (watch.problem() or "")


async def test_a_load_may_take_longer_than_a_silence(serving: Bench) -> None:
    serving.engine.gates["ping"] = serving.engine.gates["load"] = asyncio.Event()
    watch = watch_of(serving)
    await serving.stage("1")
    await serving.pause(lease=10_000)
    async with running(watch):
        load = asyncio.create_task(serving.load("1"))
        await soon(lambda: serving.agent.phase is Phase.LOADING)
        serving.clock.advance(500)
        assert watch.problem() is None
        serving.clock.advance(101)
        assert "not answered" in (watch.problem() or "")
        serving.engine.gates["load"].set()
        await load


async def test_a_dead_engine_is_a_problem_at_once(serving: Bench) -> None:
    serving.engine.is_dead = True

    assert watch_of(serving).problem() == "the engine process is dead"
