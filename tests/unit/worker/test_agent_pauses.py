"""The agent: pauses, drains and their leases."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import PauseMode, Phase


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.ABORT, PauseMode.WAIT])
async def test_a_pause_holds_a_lease_in_its_mode(serving: Bench, mode: PauseMode) -> None:
    await serving.pause(mode, lease=30)

    pause = serving.state.pause
    assert pause is not None
    assert (pause.mode, pause.lease_remaining_seconds) == (mode, 30)
    assert serving.agent.is_open, "requests are held, not turned away"


async def test_pausing_again_renews_the_lease_and_leaves_the_engine_alone(serving: Bench) -> None:
    await serving.pause(lease=30)
    serving.clock.advance(20)
    calls = list(serving.engine.calls)
    await serving.pause(lease=30)

    assert serving.engine.calls == calls
    assert serving.state.pause is not None
    assert serving.state.pause.lease_remaining_seconds == 30
    assert serving.state.pause.paused_seconds == 20


async def test_an_abort_of_a_pause_that_holds_ends_what_is_held(serving: Bench) -> None:
    await serving.pause(PauseMode.KEEP)
    serving.engine.running = 3
    assert serving.state.requests_held == 3
    await serving.pause(PauseMode.ABORT)

    assert serving.engine.calls == ["pause keep", "pause abort"]
    assert serving.state.requests_held == 0


async def test_a_lease_is_renewed_while_a_load_runs(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    serving.clock.advance(9)
    await asyncio.wait_for(serving.pause(lease=10), timeout=1)
    serving.clock.advance(9)
    serving.engine.gates["load"].set()
    await load
    await serving.agent.expire_lease()

    assert serving.agent.phase is Phase.PAUSED


async def test_a_pause_that_the_engine_fails_resumes(serving: Bench) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    with pytest.raises(EngineFailure):
        await serving.pause()

    assert serving.agent.phase is Phase.SERVING
    assert serving.engine.calls == ["pause keep", "resume"]


async def test_a_drain_ends_when_requests_have(serving: Bench) -> None:
    await serving.pause(PauseMode.WAIT, drain=60)

    assert serving.engine.calls == ["pause wait"]
    assert serving.state.pause is not None
    assert serving.state.pause.drain_timed_out is False


async def test_a_drain_past_its_deadline_holds_the_rest(serving: Bench) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    await serving.pause(PauseMode.WAIT, drain=0.01)

    assert serving.engine.calls == ["pause wait", "pause keep"]
    assert serving.state.pause is not None
    assert serving.state.pause.mode is PauseMode.KEEP
    assert serving.state.pause.drain_timed_out is True


async def test_an_abort_takes_over_from_a_drain(serving: Bench) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    assert serving.state.requests_held == 0
    await serving.pause(PauseMode.ABORT)
    await draining

    assert serving.state.pause is not None
    assert serving.state.pause.mode is PauseMode.ABORT
    assert serving.engine.calls[-1] == "pause abort"


async def test_a_drain_is_not_cut_short_by_what_cut_an_earlier_one(serving: Bench) -> None:
    await serving.fence()
    await serving.admit("base")
    gate = serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await asyncio.wait({draining}, timeout=0.05)
    assert not draining.done()
    gate.set()
    await draining

    assert serving.engine.calls[-1] == "pause wait"


async def test_a_fence_cuts_a_drain_short_and_closes(serving: Bench) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    await serving.fence()
    await draining

    assert serving.agent.phase is Phase.JOINING
    assert serving.agent.lease is None


async def test_an_expired_lease_over_untouched_weights_resumes(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    serving.clock.advance(9.9)
    await serving.agent.expire_lease()
    assert serving.agent.phase is Phase.PAUSED, "not before its time"
    serving.clock.advance(0.1)
    await serving.agent.expire_lease()

    state = serving.state
    assert (state.phase, state.version, state.pause) == (Phase.SERVING, "base", None)
    assert state.lease_expiries == 1
    assert state.staged is not None


async def test_an_expired_lease_after_a_load_closes_the_latch(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    await serving.load("1")
    serving.engine.running = 2
    serving.clock.advance(10)
    await serving.agent.expire_lease()

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "1")
    assert state.lease_expiries == 1
    assert serving.engine.running == 0
    await serving.admit("1")
