"""Calls, expiring leases and failures in the middle of another call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.present import present
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing, refused

from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode, Phase, Reason, Source, StageRequest


@asynccontextmanager
async def held(
    harness: WorkerHarness, call: str, work: Coroutine[Any, Any, None]
) -> AsyncIterator[Any]:
    """A call that is under way and waits in the engine; afterwards it continues to its end."""
    gate = harness.engine.gates[call] = asyncio.Event()
    before = len(harness.engine.calls)
    task = asyncio.create_task(work)
    await soon(lambda: any(each.startswith(call) for each in harness.engine.calls[before:]))
    yield task
    gate.set()
    await asyncio.wait({task}, timeout=5)
    assert task.done()
    del harness.engine.gates[call]


def remaining_seconds(harness: WorkerHarness) -> float | None:
    """Seconds until the lease of the pause ends."""
    return pause.lease_remaining_seconds if (pause := harness.state.pause) is not None else None


async def test_an_admission_that_waited_while_a_newer_call_was_accepted_opens_nothing(
    joining: WorkerHarness,
) -> None:
    async with joining.agent.lock:
        admission = asyncio.create_task(joining.admit("base"))
        await soon(lambda: joining.agent.epoch is not None)
        joining.agent.obey(joining.epoch())
    assert (await refused(admission)).reason is Reason.STALE_EPOCH
    assert not joining.state.admitted


@pytest.mark.parametrize("call", ["load", "apply", "pause"])
async def test_a_call_that_waited_while_a_newer_pause_was_answered_has_no_effect(
    serving: WorkerHarness, call: str
) -> None:
    await serving.staged_in_a_pause("1")
    calls = {
        "load": partial(serving.load, "1"),
        "apply": partial(serving.apply, "1"),
        "pause": partial(serving.pause, PauseMode.ABORT),
    }
    async with serving.agent.lock:
        seen = serving.agent.epoch
        waiting = asyncio.create_task(calls[call]())
        await soon(lambda: serving.agent.epoch != seen)
        await serving.pause(lease=60)  # renews the lease at once
    assert (await refused(waiting)).reason is Reason.STALE_EPOCH
    assert serving.engine.calls == ["pause keep"]
    assert (serving.state.phase, serving.state.version) == (Phase.PAUSED, "base")


# --- a lease that ends meanwhile ----------------------------------------------------------------


async def test_a_lease_that_expires_during_a_load_leaves_the_new_weights_behind_a_closed_latch(
    serving: WorkerHarness,
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
    assert "resume" not in serving.engine.calls, "no caller admitted the new weights"


async def test_a_lease_that_expires_during_a_refused_load_resumes_the_old_weights(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    serving.engine.failures["load"] = [untouched()]
    async with held(serving, "load", serving.load("1")) as load:
        serving.clock.advance(11)
        expiring = asyncio.create_task(serving.agent.expire_lease())
    await failing(load)
    await expiring

    state = serving.state
    assert (state.phase, state.version) == (Phase.SERVING, "base")
    assert present(state.load_failure).version == "1"


async def test_a_renewal_at_the_moment_of_expiry_keeps_the_pause(serving: WorkerHarness) -> None:
    await serving.pause(lease=10)
    serving.clock.advance(11)
    await serving.pause(lease=10)
    await serving.agent.expire_lease()

    assert serving.state.phase is Phase.PAUSED
    assert serving.state.lease_expiries == 0


async def test_a_pause_during_a_resume_pauses_the_worker_after_it(serving: WorkerHarness) -> None:
    await serving.pause(lease=10)
    async with held(serving, "resume", serving.resume("base")) as resume:
        pausing = asyncio.create_task(serving.pause(lease=30))
        await soon(lambda: remaining_seconds(serving) == 30)  # renewed at once
        assert not pausing.done()
    await resume
    await pausing

    assert serving.state.phase is Phase.PAUSED
    assert serving.engine.paused


async def test_a_pause_during_a_resume_that_fails_keeps_the_pause(serving: WorkerHarness) -> None:
    await serving.pause(lease=10)
    serving.engine.failures["resume"] = [untouched()]
    async with held(serving, "resume", serving.resume("base")) as resume:
        pausing = asyncio.create_task(serving.pause(lease=30))
        await soon(lambda: remaining_seconds(serving) == 30)
        serving.clock.advance(11)  # the lease before its renewal would be over
    await failing(resume)
    await pausing
    await serving.agent.expire_lease()

    assert (serving.state.phase, serving.state.lease_expiries) == (Phase.PAUSED, 0)


async def test_a_pause_while_an_expired_lease_resumes_the_worker_is_a_new_pause(
    serving: WorkerHarness,
) -> None:
    await serving.pause(lease=10)
    serving.clock.advance(11)
    async with held(serving, "resume", serving.agent.expire_lease()) as expiring:
        pausing = asyncio.create_task(serving.pause(lease=30))
        await soon(lambda: remaining_seconds(serving) == 30)
    await expiring
    await pausing

    assert (serving.state.phase, serving.state.lease_expiries) == (Phase.PAUSED, 1)
    assert serving.engine.paused


async def test_a_caller_that_takes_over_an_expired_pause_becomes_its_holder(
    serving: WorkerHarness,
) -> None:
    await serving.pause(lease=10, holder="one")
    serving.clock.advance(11)
    await serving.pause(lease=10, holder="another")

    assert present(serving.state.pause).holder == "another"
    assert (await refused(serving.resume("base", holder="one"))).reason is Reason.HELD_BY_ANOTHER
    await serving.resume("base", holder="another")


async def test_a_caller_that_takes_over_during_a_load_gets_the_worker_afterwards(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    await serving.pause(lease=10, holder="one")
    async with held(serving, "load", serving.load("1", holder="one")) as load:
        serving.clock.advance(11)
        taking = asyncio.create_task(serving.pause(lease=10, holder="another"))
        await asyncio.sleep(0)
        assert not taking.done(), "it would count as the holder"
    await load
    await taking
    await serving.resume("1", holder="another")

    assert serving.state.version == "1"


# --- a fence or a drain that comes meanwhile -----------------------------------------------------


async def test_a_fence_that_waits_for_a_failing_pause_still_closes_the_latch(
    serving: WorkerHarness,
) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    async with held(serving, "pause keep", serving.pause()) as pause:
        fencing = asyncio.create_task(serving.fence())
        await soon(lambda: not serving.agent.is_open)
    await failing(pause)
    await fencing

    assert (serving.state.phase, serving.state.admitted) == (Phase.JOINING, False)
    assert serving.engine.paused


async def test_a_fence_during_the_restore_after_a_broken_load_keeps_the_worker_closed(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["load"] = [touched()]
    probe = serving.engine.gates["probe"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: "probe" in serving.engine.calls)
    assert serving.state.phase is Phase.BROKEN
    fencing = asyncio.create_task(serving.fence())
    probe.set()
    await failing(load)
    await fencing

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert serving.ended == []


@pytest.mark.parametrize("failure", [untouched(), touched()], ids=["untouched", "touched"])
async def test_a_drain_that_overtakes_a_failing_load_ends_in_draining(
    serving: WorkerHarness, failure: EngineFailure
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["load"] = [failure]
    async with held(serving, "load", serving.load("1")) as load:
        await serving.agent.drain(patience_seconds=0.01)
        assert serving.state.phase is Phase.DRAINING
    with pytest.raises((Refusal, EngineFailure)):
        await load

    assert serving.state.phase is Phase.DRAINING
    assert serving.state.admitted is False
    assert "resume" not in serving.engine.calls


async def test_a_draining_worker_refuses_every_call(serving: WorkerHarness) -> None:
    path = write_tiny(serving.root / "1")
    await serving.agent.drain(patience_seconds=1)
    calls = (
        lambda: serving.stage("1", path),
        serving.pause,
        lambda: serving.load("1"),
        lambda: serving.apply("1"),
        lambda: serving.resume("base"),
        lambda: serving.admit("base"),
        serving.run_prompts,
    )
    for call in calls:
        refusal = await refused(call())
        assert refusal.reason is Reason.WRONG_PHASE


# --- stages that overtake each other --------------------------------------------------------------


async def test_an_overtaken_stage_is_not_a_failure_of_the_worker(serving: WorkerHarness) -> None:
    release = asyncio.Event()
    agent, staging = serving.agent, serving.agent.staging
    bring = staging._prepare

    async def slow(running: Any) -> Any:
        if running.request.version == "1":
            await release.wait()
        return await bring(running)

    staging._prepare = slow
    older = asyncio.create_task(serving.stage("1"))
    await soon(lambda: staging.running is not None)
    await serving.stage("22")
    release.set()
    assert (await refused(older)).reason is Reason.SUPERSEDED
    assert serving.state.stage_failure is None
    assert present(agent.staging.staged).version == "22"


async def test_a_stage_during_a_load_waits_and_can_be_loaded_next(serving: WorkerHarness) -> None:
    await serving.staged_in_a_pause("1")
    async with held(serving, "load", serving.load("1")) as load:
        await serving.stage("22")
        assert present(serving.state.staged).version == "22"
    await load
    await serving.load("22")
    await serving.resume("22")

    assert serving.state.version == "22"
    assert serving.engine.label == "22"


async def test_a_load_that_fails_with_an_unchanged_model_keeps_only_the_newer_stage(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["load"] = [untouched()]
    older = present(serving.agent.staging.staged)
    async with held(serving, "load", serving.load("1")) as load:
        await serving.stage("22")
    await failing(load)

    assert present(serving.state.staged).version == "22"
    await soon(lambda: older.checkpoint.files == ())


async def test_the_served_version_staged_from_another_path_is_checked_again(
    serving: WorkerHarness,
) -> None:
    elsewhere = write_tiny(serving.root / "elsewhere", 7.0)
    source = Source(path=str(elsewhere))
    request = StageRequest(version="base", source=source, epoch=serving.epoch())
    assert (await refused(serving.agent.stage(request))).reason is Reason.VERSION_REUSED
    assert serving.state.version == "base"


# --- order of calls --------------------------------------------------------------------------------


async def test_the_second_of_two_admissions_finds_the_worker_serving(
    joining: WorkerHarness,
) -> None:
    async with held(joining, "resume", joining.admit("base")) as first:
        second = asyncio.create_task(joining.admit("base"))
    await first
    await second

    assert joining.engine.calls.count("resume") == 1
    assert joining.state.phase is Phase.SERVING


async def test_two_concurrent_pauses_pause_the_engine_once(serving: WorkerHarness) -> None:
    async with held(serving, "pause keep", serving.pause()) as first:
        second = asyncio.create_task(serving.pause(lease=99))
    await first
    await second

    assert serving.engine.calls.count("pause keep") == 1
    assert present(serving.state.pause).lease_remaining_seconds == 99


async def test_an_abort_during_a_keeping_pause_ends_the_held_requests(
    serving: WorkerHarness,
) -> None:
    serving.engine.running = 3
    async with held(serving, "pause keep", serving.pause()) as first:
        second = asyncio.create_task(serving.pause(PauseMode.ABORT))
    await first
    await second

    assert serving.state.requests_held == 0
    assert present(serving.state.pause).mode is PauseMode.ABORT
