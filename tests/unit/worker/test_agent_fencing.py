"""The agent: who may drive, fences and drains, and what the state says of it."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.tiny import BASE_DIGEST
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench, refused

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.weight_names import short_digest
from fleet_worker.protocol import Epoch, PauseMode, PauseRequest, Phase, Reason

# --- who may drive ------------------------------------------------------------------------------


async def test_every_call_of_an_older_epoch_is_refused(serving: Bench) -> None:
    await serving.pause()
    late = Epoch(term=0, sequence=10**6)
    body = {"version": "base", "epoch": late}
    from fleet_worker.core.states import Event  # noqa: PLC0415 - of this test only
    from fleet_worker.protocol import (  # noqa: PLC0415 - of this test only
        FenceRequest,
        LoadRequest,
        OpenRequest,
        Source,
        StageRequest,
    )

    agent = serving.agent
    calls = [
        agent.stage(StageRequest(source=Source(path="/x"), **body)),
        agent.pause(PauseRequest(mode=PauseMode.KEEP, lease_seconds=1, epoch=late)),
        agent.load(LoadRequest(**body)),
        agent.open(OpenRequest(**body), Event.RESUME),
        agent.open(OpenRequest(**body), Event.ADMIT),
        agent.fence(FenceRequest(reason="late", epoch=late)),
    ]
    for call in calls:
        assert (await refused(call)).reason is Reason.STALE_EPOCH
    assert agent.phase is Phase.PAUSED


async def test_a_second_driver_is_refused_while_the_first_holds_the_lease(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause(holder="trainer", lease=10)
    for call in (serving.pause(), serving.load("1"), serving.resume("base")):
        assert (await refused(call)).reason is Reason.HELD_BY_ANOTHER
    await serving.load("1", holder="trainer")
    await serving.resume("1", holder="trainer")
    await serving.pause(holder="operator")

    assert serving.state.pause is not None
    assert serving.state.pause.holder == "operator"


# --- fence and drain ----------------------------------------------------------------------------


async def test_a_fence_closes_at_once_and_ends_what_is_running(serving: Bench) -> None:
    serving.engine.running = 5
    serving.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(serving.fence())
    await asyncio.sleep(0)
    assert not serving.agent.is_open, "before the engine has answered"
    serving.engine.gates["pause abort"].set()
    await fence

    assert serving.agent.phase is Phase.JOINING
    assert serving.engine.running == 0


async def test_a_fence_waits_for_requests_between_the_latch_and_the_engine(serving: Bench) -> None:
    serving.agent.quiescence.inside = 1
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: serving.engine.calls.count("pause abort") >= 2)
    assert not fence.done()
    serving.agent.quiescence.inside = 0
    await fence


async def test_a_fence_during_a_load_closes_at_once_and_ends_in_joining(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    fence = asyncio.create_task(serving.fence())
    await asyncio.sleep(0)
    assert not serving.agent.is_open
    serving.engine.gates["load"].set()
    await asyncio.gather(load, fence)

    state = serving.state
    assert (state.phase, state.version, state.pause) == (Phase.JOINING, "1", None)


async def test_a_fence_wins_over_an_admission_that_is_under_way(joining: Bench) -> None:
    joining.engine.gates["resume"] = asyncio.Event()
    admission = asyncio.create_task(joining.admit("base"))
    await soon(lambda: joining.engine.calls[-1] == "resume")
    joining.engine.calls.clear()
    quiescing = joining.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(joining.fence())
    await asyncio.sleep(0)
    joining.engine.gates["resume"].set()
    await soon(lambda: joining.engine.calls == ["pause abort"])
    assert not joining.agent.is_open, "nobody gets in while the fence ends what is running"
    quiescing.set()
    await asyncio.gather(admission, fence)

    assert joining.agent.phase is Phase.JOINING
    assert not joining.agent.is_open
    assert joining.engine.paused


async def test_a_worker_that_is_being_fenced_does_not_resume(serving: Bench) -> None:
    await serving.pause()
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    aborting = asyncio.create_task(serving.pause(PauseMode.ABORT))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    resume = asyncio.create_task(serving.resume("base"))
    await asyncio.sleep(0)  # it waits for the lock, in front of the fence
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: not serving.agent.is_open)
    gate.set()
    await asyncio.gather(aborting, fence)

    assert (await refused(resume)).reason is Reason.WRONG_PHASE
    assert "resume" not in serving.engine.calls


async def test_a_drain_of_a_paused_worker_ends_what_it_holds(serving: Bench) -> None:
    await serving.pause()
    serving.engine.running = 3
    await serving.agent.drain(patience_seconds=1)

    assert serving.agent.phase is Phase.DRAINING
    assert not serving.agent.is_open
    assert serving.engine.running == 0
    assert (await refused(serving.admit("base"))).reason is Reason.WRONG_PHASE


async def test_a_drain_lets_running_requests_end(serving: Bench) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 2
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000))
    await soon(lambda: serving.agent.phase is Phase.DRAINING)
    state = serving.state
    assert (state.admitted, state.requests_running, state.requests_held) == (False, 2, 0)
    assert "pause abort" not in serving.engine.calls
    serving.engine.running = serving.agent.quiescence.inside = 0
    await drain

    assert serving.engine.paused


async def test_a_drain_lets_held_requests_go_on(serving: Bench) -> None:
    await serving.pause()
    serving.engine.running = serving.agent.quiescence.inside = 1
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000))
    await soon(lambda: serving.engine.calls[-1:] == ["resume"])
    assert not serving.agent.is_open
    serving.engine.running = serving.agent.quiescence.inside = 0
    await drain


async def test_a_drain_ends_what_outlives_it_and_says_so(serving: Bench) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 1
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=5, drain_timeout_seconds=0.01))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    assert serving.agent.quiescence.outlived
    serving.agent.quiescence.inside = 0
    gate.set()
    await drain


async def test_a_drain_tells_how_much_of_its_patience_is_left(serving: Bench) -> None:
    assert 900 < await serving.agent.drain(patience_seconds=1000) <= 1000
    serving.engine.gates["pause abort"] = asyncio.Event()

    assert await serving.agent.drain(patience_seconds=0.01) == 0


async def test_a_drain_gives_no_time_to_weights_that_are_not_to_be_trusted(serving: Bench) -> None:
    await serving.pause()
    serving.engine.running = 1
    serving.agent.version = None
    await serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000)

    assert "resume" not in serving.engine.calls
    assert serving.engine.running == 0


@pytest.mark.parametrize(
    ("seconds", "outlived"), [pytest.param(0.01, True, id="after a drain"), (0, False)]
)
async def test_a_fence_says_of_what_it_ends_whether_that_outlived_a_drain(
    serving: Bench, seconds: float, *, outlived: bool
) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 1
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(serving.fence(drain=seconds))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    assert serving.agent.quiescence.outlived is outlived
    serving.agent.quiescence.inside = 0
    gate.set()
    await fence

    assert not serving.agent.quiescence.outlived


async def test_a_drain_does_not_wait_for_a_load(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    await serving.agent.drain(patience_seconds=0.01)

    assert serving.agent.phase is Phase.DRAINING
    serving.engine.gates["load"].set()
    with pytest.raises(Refusal):
        await load
    assert serving.agent.phase is Phase.DRAINING


# --- the state document -------------------------------------------------------------------------


async def test_the_state_counts_running_and_held_requests(serving: Bench) -> None:
    serving.engine.running = 4
    assert (serving.state.requests_running, serving.state.requests_held) == (4, 0)
    await serving.pause()
    assert (serving.state.requests_running, serving.state.requests_held) == (0, 4)


async def test_timings_add_up_over_the_swap(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.clock.advance(2)
    await serving.load("1")
    serving.clock.advance(3)
    await serving.resume("1")

    timings = serving.state.timings
    assert timings is not None
    assert timings.version == "1"
    assert timings.paused_seconds == 5
    assert timings.stage_seconds is not None


async def test_metrics_follow_the_state(serving: Bench) -> None:
    def value(name: str, **labels: str) -> float | None:
        return serving.registry.get_sample_value(f"rlfleet_worker_{name}", labels)

    assert value("phase", phase="serving") == 1
    assert value("phase", phase="paused") == 0
    assert value("admitted") == 1
    base = {"version": "base", "run_id": "", "digest": BASE_DIGEST}
    assert value("version_info", **base) == 1
    await serving.stage("1", run_id="run-7")
    await serving.pause()
    serving.engine.running = 2
    assert value("requests_held") == 2
    await serving.load("1")
    serving.clock.advance(4)
    await serving.resume("1")
    assert value("pause_seconds_count") == 1
    assert value("pause_seconds_sum") == 4
    assert value("load_seconds_count") == 1
    assert value("stage_seconds_count") == 1
    assert value("version_info", **base) is None
    digest = short_digest(serving.state.digest or "")
    assert value("version_info", version="1", run_id="run-7", digest=digest) == 1
