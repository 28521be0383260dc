"""An apply: a whole swap in one call."""

from __future__ import annotations

import asyncio

from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, refused

from fleet_worker.protocol import PauseMode, Phase, Reason


async def test_an_apply_pauses_loads_and_resumes(serving: WorkerHarness) -> None:
    path = await serving.stage("1")
    await serving.apply("1")

    assert serving.engine.calls == [
        "pause keep",
        f"load {path}",
        "probe",
        "reset_caches",
        "set_version 1",
        "resume",
    ]
    state = serving.state
    assert (state.phase, state.version, state.pause) == (Phase.SERVING, "1", None)
    assert state.timings is not None
    assert state.timings.paused_seconds is not None
    assert state.operation is None


async def test_applying_the_served_version_does_nothing(serving: WorkerHarness) -> None:
    await serving.stage("1")
    await serving.apply("1")
    serving.engine.calls.clear()
    await serving.apply("1")

    assert serving.engine.calls == []


async def test_applying_an_unstaged_version_does_not_pause(serving: WorkerHarness) -> None:
    await serving.stage("1")

    assert (await refused(serving.apply("2"))).reason is Reason.NOT_STAGED
    assert serving.engine.calls == []


async def test_after_a_refused_apply_the_worker_serves_its_old_weights(
    serving: WorkerHarness,
) -> None:
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.stage("1")
    write_tiny(path, 9.0)

    assert (await refused(serving.apply("1"))).reason is Reason.CHECKPOINT_CHANGED
    state = serving.state
    assert (state.phase, state.version, state.pause) == (Phase.SERVING, "base", None)
    assert serving.engine.calls == ["pause keep", "resume"]
    assert state.load_failure is not None


async def test_an_apply_that_is_fenced_does_not_serve(serving: WorkerHarness) -> None:
    await serving.stage("1")
    gate = serving.engine.gates["load"] = asyncio.Event()
    applying = asyncio.create_task(serving.apply("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: not serving.agent.is_open)
    gate.set()
    await asyncio.gather(applying, fence)

    assert (serving.agent.phase, serving.agent.version) == (Phase.JOINING, "1")
    assert "resume" not in serving.engine.calls


async def test_an_apply_that_is_fenced_while_it_drains_does_not_load(
    serving: WorkerHarness,
) -> None:
    await serving.stage("1")
    serving.engine.gates["pause wait"] = asyncio.Event()
    applying = asyncio.create_task(serving.apply("1", mode=PauseMode.WAIT))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    await serving.fence()

    assert (await refused(applying)).reason is Reason.WRONG_PHASE
    assert not any(call.startswith("load") for call in serving.engine.calls)
    assert serving.state.staged is not None


async def test_an_apply_takes_over_the_pause_of_the_same_holder(serving: WorkerHarness) -> None:
    await serving.staged_in_a_pause("1")
    await serving.apply("1")
    assert serving.agent.phase is Phase.SERVING
    await serving.pause()
    await serving.apply("1")

    assert serving.agent.phase is Phase.SERVING, "its version was in the engine already"


async def test_a_joining_worker_refuses_an_apply(joining: WorkerHarness) -> None:
    await joining.stage("1")

    for version in ("1", "base"):
        assert (await refused(joining.apply(version))).reason is Reason.WRONG_PHASE
    assert joining.engine.paused
