"""The agent: a whole swap in one call."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import touched
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench, refused

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import PauseMode, Phase, Reason


async def test_an_apply_is_pause_load_and_resume(serving: Bench) -> None:
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


async def test_applying_what_is_served_does_nothing(serving: Bench) -> None:
    await serving.stage("1")
    await serving.apply("1")
    serving.engine.calls.clear()
    await serving.apply("1")

    assert serving.engine.calls == []


async def test_an_apply_of_what_is_not_staged_does_not_even_pause(serving: Bench) -> None:
    await serving.stage("1")

    assert (await refused(serving.apply("2"))).reason is Reason.NOT_STAGED
    assert serving.engine.calls == []


async def test_a_refused_apply_serves_on_with_the_old_weights(serving: Bench) -> None:
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.stage("1")
    write_tiny(path, 9.0)

    assert (await refused(serving.apply("1"))).reason is Reason.CHECKPOINT_CHANGED
    state = serving.state
    assert (state.phase, state.version, state.pause) == (Phase.SERVING, "base", None)
    assert serving.engine.calls == ["pause keep", "resume"]
    assert state.load_failure is not None


async def test_an_apply_that_breaks_the_engine_ends_behind_a_closed_latch(serving: Bench) -> None:
    await serving.stage("1")
    serving.engine.failures["probe"] = [touched()]
    with pytest.raises(EngineFailure):
        await serving.apply("1")

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert serving.engine.paused


async def test_an_apply_that_is_fenced_meanwhile_does_not_serve(serving: Bench) -> None:
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


async def test_an_apply_that_is_fenced_while_it_drains_does_not_load(serving: Bench) -> None:
    await serving.stage("1")
    serving.engine.gates["pause wait"] = asyncio.Event()
    applying = asyncio.create_task(serving.apply("1", mode=PauseMode.WAIT))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    await serving.fence()

    assert (await refused(applying)).reason is Reason.WRONG_PHASE
    assert not any(call.startswith("load") for call in serving.engine.calls)
    assert serving.state.staged is not None


async def test_an_apply_takes_over_from_the_holders_own_pause(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.apply("1")
    assert serving.agent.phase is Phase.SERVING
    await serving.pause()
    await serving.apply("1")

    assert serving.agent.phase is Phase.SERVING, "its version was in the engine already"


async def test_a_joining_worker_applies_nothing(joining: Bench) -> None:
    await joining.stage("1")

    for version in ("1", "base"):
        assert (await refused(joining.apply(version))).reason is Reason.WRONG_PHASE
    assert joining.engine.paused
