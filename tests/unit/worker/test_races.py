"""Calls, leases and failures that come at the worst moment: in the middle of something else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode, Phase, Reason, Source, StageRequest


@asynccontextmanager
async def held(bench: Bench, call: str, work: Coroutine[Any, Any, None]) -> AsyncIterator[Any]:
    """A call that is under way and waits in the engine; afterwards it goes on to its end."""
    gate = bench.engine.gates[call] = asyncio.Event()
    before = len(bench.engine.calls)
    task = asyncio.create_task(work)
    await soon(lambda: any(each.startswith(call) for each in bench.engine.calls[before:]))
    yield task
    gate.set()
    await asyncio.wait({task}, timeout=5)
    assert task.done()
    del bench.engine.gates[call]


# --- a lease that ends meanwhile ----------------------------------------------------------------


async def test_a_lease_that_ends_during_a_load_leaves_the_new_weights_behind_a_closed_latch(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    async with held(serving, "load", serving.load("1")) as load:
        serving.clock.advance(11)
        expiring = asyncio.create_task(serving.agent.expire_lease())
    await load
    await expiring

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "1")
    assert state.pause is None
    assert state.lease_expiries == 1
    assert "resume" not in serving.engine.calls, "nobody vouched for the new weights"


async def test_a_lease_that_ends_during_a_load_that_is_refused_serves_on_with_the_old_weights(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    serving.engine.failures["load"] = [untouched()]
    async with held(serving, "load", serving.load("1")) as load:
        serving.clock.advance(11)
        expiring = asyncio.create_task(serving.agent.expire_lease())
    with pytest.raises(EngineFailure):
        await load
    await expiring

    state = serving.state
    assert (state.phase, state.version) == (Phase.SERVING, "base")
    assert state.load_failure is not None
    assert state.load_failure.version == "1"


async def test_a_lease_that_ends_during_an_apply_does_not_keep_it_from_serving(
    serving: Bench,
) -> None:
    await serving.stage("1")
    async with held(serving, "load", serving.apply("1")) as applied:
        serving.clock.advance(1000)
        expiring = asyncio.create_task(serving.agent.expire_lease())
    await applied
    await expiring

    state = serving.state
    assert (state.phase, state.version, state.lease_expiries) == (Phase.SERVING, "1", 0)


async def test_a_renewal_that_comes_as_the_lease_ends_keeps_the_pause(serving: Bench) -> None:
    await serving.pause(lease=10)
    serving.clock.advance(11)
    await serving.pause(lease=10)
    await serving.agent.expire_lease()

    assert serving.state.phase is Phase.PAUSED
    assert serving.state.lease_expiries == 0


async def test_who_takes_over_a_pause_that_has_run_out_is_its_holder_from_then_on(
    serving: Bench,
) -> None:
    await serving.pause(lease=10, holder="one")
    serving.clock.advance(11)
    await serving.pause(lease=10, holder="another")

    assert serving.state.pause is not None
    assert serving.state.pause.holder == "another"
    with pytest.raises(Refusal) as refused:
        await serving.resume("base", holder="one")
    assert refused.value.reason is Reason.HELD_BY_ANOTHER
    await serving.resume("base", holder="another")


async def test_who_takes_over_during_a_load_gets_the_worker_when_it_has_ended(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause(lease=10, holder="one")
    async with held(serving, "load", serving.load("1", holder="one")) as load:
        serving.clock.advance(11)
        taking = asyncio.create_task(serving.pause(lease=10, holder="another"))
        await asyncio.sleep(0)
        assert not taking.done(), "it would have been told that it holds the worker"
    await load
    await taking
    await serving.resume("1", holder="another")

    assert serving.state.version == "1"


# --- a fence or a drain that comes meanwhile -----------------------------------------------------


async def test_a_fence_that_waits_for_a_pause_that_fails_still_closes(serving: Bench) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    async with held(serving, "pause keep", serving.pause()) as pause:
        fencing = asyncio.create_task(serving.fence())
        await soon(lambda: not serving.agent.is_open)
    with pytest.raises(EngineFailure):
        await pause
    await fencing

    assert (serving.state.phase, serving.state.admitted) == (Phase.JOINING, False)
    assert serving.engine.paused


async def test_a_fence_during_the_way_back_from_a_broken_load_keeps_the_worker_closed(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["load"] = [touched()]
    probe = serving.engine.gates["probe"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: "probe" in serving.engine.calls)
    assert serving.state.phase is Phase.BROKEN
    fencing = asyncio.create_task(serving.fence())
    probe.set()
    with pytest.raises(EngineFailure):
        await load
    await fencing

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert serving.ended == []


@pytest.mark.parametrize("failure", [untouched(), touched()], ids=["untouched", "touched"])
async def test_a_drain_that_overtakes_a_load_that_fails_is_a_drain(
    serving: Bench, failure: EngineFailure
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["load"] = [failure]
    async with held(serving, "load", serving.load("1")) as load:
        await serving.agent.drain(patience_seconds=0.01)
        assert serving.state.phase is Phase.DRAINING
    with pytest.raises((Refusal, EngineFailure)):
        await load

    assert serving.state.phase is Phase.DRAINING
    assert serving.state.admitted is False
    assert "resume" not in serving.engine.calls


async def test_a_drain_of_an_engine_that_fails_is_a_drain(serving: Bench) -> None:
    serving.engine.failures["pause abort"] = [untouched()]
    await serving.agent.drain(patience_seconds=1)

    assert (serving.state.phase, serving.state.admitted) == (Phase.DRAINING, False)


async def test_a_worker_that_drains_takes_no_orders_any_more(serving: Bench) -> None:
    path = write_tiny(serving.root / "1")
    await serving.agent.drain(patience_seconds=1)
    calls = (
        lambda: serving.stage("1", path),
        serving.pause,
        lambda: serving.load("1"),
        lambda: serving.apply("1"),
        lambda: serving.resume("base"),
        lambda: serving.admit("base"),
        serving.probe,
    )
    for call in calls:
        with pytest.raises(Refusal) as refused:
            await call()
        assert refused.value.reason is Reason.WRONG_PHASE


# --- stages that overtake each other --------------------------------------------------------------


async def test_a_stage_that_was_overtaken_is_no_failure_of_the_worker(serving: Bench) -> None:
    release = asyncio.Event()
    agent, staging = serving.agent, serving.agent.staging
    bring = staging._prepare

    async def slow(running: Any) -> Any:
        if running.request.version == "1":
            await release.wait()
        return await bring(running)

    staging._prepare = slow  # type: ignore[method-assign]
    older = asyncio.create_task(serving.stage("1"))
    await soon(lambda: staging.running is not None)
    await serving.stage("22")
    release.set()
    with pytest.raises(Refusal) as refused:
        await older

    assert refused.value.reason is Reason.SUPERSEDED
    assert serving.state.stage_failure is None
    assert agent.staging.staged is not None
    assert agent.staging.staged.version == "22"


async def test_a_stage_during_a_load_waits_its_turn_and_is_loaded_next(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    async with held(serving, "load", serving.load("1")) as load:
        await serving.stage("22")
        assert serving.state.staged is not None
        assert serving.state.staged.version == "22"
    await load
    await serving.load("22")
    await serving.resume("22")

    assert serving.state.version == "22"
    assert serving.engine.label == "22"


async def test_a_load_that_fails_untouched_keeps_the_newer_stage_and_not_its_own(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["load"] = [untouched()]
    async with held(serving, "load", serving.load("1")) as load:
        await serving.stage("22")
    with pytest.raises(EngineFailure):
        await load

    assert serving.state.staged is not None
    assert serving.state.staged.version == "22"


async def test_the_served_version_staged_from_another_place_is_staged_and_may_be_refused(
    serving: Bench,
) -> None:
    elsewhere = write_tiny(serving.root / "elsewhere", 7.0)
    source = Source(path=str(elsewhere))
    request = StageRequest(version="base", source=source, epoch=serving.epoch())
    with pytest.raises(Refusal) as refused:
        await serving.agent.stage(request)

    assert refused.value.reason is Reason.VERSION_REUSED
    assert serving.state.version == "base"


# --- order of calls --------------------------------------------------------------------------------


async def test_of_two_admissions_the_second_finds_the_worker_serving(joining: Bench) -> None:
    async with held(joining, "resume", joining.admit("base")) as first:
        second = asyncio.create_task(joining.admit("base"))
    await first
    await second

    assert joining.engine.calls.count("resume") == 1
    assert joining.state.phase is Phase.SERVING


async def test_of_two_pauses_at_once_the_engine_hears_one(serving: Bench) -> None:
    async with held(serving, "pause keep", serving.pause()) as first:
        second = asyncio.create_task(serving.pause(lease=99))
    await first
    await second

    assert serving.engine.calls.count("pause keep") == 1
    assert serving.state.pause is not None
    assert serving.state.pause.lease_remaining_seconds == 99


async def test_an_abort_that_comes_while_a_keep_is_under_way_ends_what_would_be_held(
    serving: Bench,
) -> None:
    serving.engine.running = 3
    async with held(serving, "pause keep", serving.pause()) as first:
        second = asyncio.create_task(serving.pause(PauseMode.ABORT))
    await first
    await second

    assert serving.state.requests_held == 0
    assert serving.state.pause is not None
    assert serving.state.pause.mode is PauseMode.ABORT
