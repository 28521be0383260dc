"""Events that a worker notices without a call."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, running, watchdog_of

from fleet_worker.protocol import Phase


async def test_a_lease_whose_end_fails_is_ended_again(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fleet_worker.lifecycle.watchdog._TRY_AGAIN_SECONDS", 0.01)
    serving.engine.failures["resume"] = [untouched()]
    async with running(watchdog_of(serving)):
        await serving.pause(lease=0.02)
        serving.clock.advance(1)
        await soon(lambda: serving.agent.phase is Phase.SERVING)

    assert serving.engine.calls.count("resume") == 2


async def test_a_dead_engine_ends_the_process(serving: WorkerHarness) -> None:
    async with running(watchdog_of(serving)):
        serving.engine.is_dead = True
        await soon(lambda: serving.ended)

    assert "died" in serving.ended[0]


async def test_a_dead_engine_that_ended_the_server_is_the_reported_reason(
    serving: WorkerHarness,
) -> None:
    async with running(watchdog_of(serving)):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.engine.is_dead = True

    assert serving.ended == ["the engine process died"]


async def test_an_engine_that_answers_keeps_the_worker_alive(serving: WorkerHarness) -> None:
    watch = watchdog_of(serving)
    async with running(watch):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.clock.advance(59)
        assert watch.problem() is None


async def test_an_engine_that_is_silent_for_too_long_is_a_problem(serving: WorkerHarness) -> None:
    serving.engine.gates["ping"] = asyncio.Event()
    watch = watchdog_of(serving)
    async with running(watch):
        await soon(lambda: "ping" in serving.engine.calls)
        serving.clock.advance(61)

        assert "not answered" in (watch.problem() or "")


async def test_a_load_may_last_longer_than_the_silence_limit(serving: WorkerHarness) -> None:
    serving.engine.gates["ping"] = serving.engine.gates["load"] = asyncio.Event()
    watch = watchdog_of(serving)
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


async def test_a_dead_engine_is_a_problem_at_once(serving: WorkerHarness) -> None:
    serving.engine.is_dead = True

    assert "process" in (watchdog_of(serving).problem() or "")
