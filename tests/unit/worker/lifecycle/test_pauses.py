"""Pauses, drains and leases."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import untouched
from tests.support.present import present
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing

from fleet_worker.protocol import PauseMode, Phase


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.ABORT, PauseMode.WAIT])
async def test_a_pause_has_a_mode_and_a_lease(serving: WorkerHarness, mode: PauseMode) -> None:
    await serving.pause(mode, lease=30)

    pause = present(serving.state.pause)
    assert (pause.mode, pause.lease_remaining_seconds) == (mode, 30)
    assert serving.agent.is_open, "requests are held, not turned away"


async def test_a_second_pause_renews_the_lease_and_does_not_call_the_engine(
    serving: WorkerHarness,
) -> None:
    await serving.pause(lease=30)
    serving.clock.advance(20)
    calls = list(serving.engine.calls)
    await serving.pause(lease=30)

    assert serving.engine.calls == calls
    assert present(serving.state.pause).lease_remaining_seconds == 30
    assert present(serving.state.pause).paused_seconds == 20


async def test_a_lease_is_renewed_while_a_load_runs(serving: WorkerHarness) -> None:
    await serving.stage("1")
    await serving.pause(lease=10)
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    serving.clock.advance(9)
    await asyncio.wait_for(serving.pause(lease=10), timeout=20)
    serving.clock.advance(9)
    serving.engine.gates["load"].set()
    await load
    await serving.agent.expire_lease()

    assert serving.agent.phase is Phase.PAUSED


async def test_a_failed_pause_resumes_the_engine(serving: WorkerHarness) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    await failing(serving.pause())

    assert serving.agent.phase is Phase.SERVING
    assert serving.engine.calls == ["pause keep", "resume"]


async def test_a_drain_ends_with_the_last_request(serving: WorkerHarness) -> None:
    await serving.pause(PauseMode.WAIT, drain=60)

    assert serving.engine.calls == ["pause wait"]
    assert present(serving.state.pause).drain_timed_out is False


async def test_a_drain_past_its_deadline_holds_the_remaining_requests(
    serving: WorkerHarness,
) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    await serving.pause(PauseMode.WAIT, drain=0.01)

    assert serving.engine.calls == ["pause wait", "pause keep"]
    assert present(serving.state.pause).mode is PauseMode.KEEP
    assert present(serving.state.pause).drain_timed_out is True


async def test_an_abort_overtakes_a_drain(serving: WorkerHarness) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    assert serving.state.requests_held == 0
    await serving.pause(PauseMode.ABORT)
    await draining

    assert present(serving.state.pause).mode is PauseMode.ABORT
    assert serving.engine.calls[-1] == "pause abort"


async def test_an_earlier_abort_does_not_cut_a_later_drain_short(serving: WorkerHarness) -> None:
    await serving.fence()
    await serving.admit("base")
    gate = serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await asyncio.wait({draining}, timeout=0.05)
    assert not draining.done()
    gate.set()
    await draining

    assert serving.engine.calls[-1] == "pause wait"


async def test_a_fence_ends_a_drain_and_closes_the_latch(serving: WorkerHarness) -> None:
    serving.engine.gates["pause wait"] = asyncio.Event()
    draining = asyncio.create_task(serving.pause(PauseMode.WAIT, drain=1000))
    await soon(lambda: serving.agent.phase is Phase.PAUSING)
    await serving.fence()
    await draining

    assert serving.agent.phase is Phase.JOINING
    assert serving.agent.lease is None


async def test_an_expired_lease_over_unchanged_weights_resumes(serving: WorkerHarness) -> None:
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
