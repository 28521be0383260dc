"""Rights of callers, fences and drains."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.tiny import BASE_DIGEST
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, refused

from fleet_worker.checkpoint.identity import short_digest
from fleet_worker.protocol import Epoch, FenceRequest, PauseMode, PauseRequest, Phase, Reason

# --- rights of callers --------------------------------------------------------------------------


async def test_every_call_of_an_older_epoch_is_refused(serving: WorkerHarness) -> None:
    await serving.pause()
    late = Epoch(term=0, sequence=10**6)
    body = {"version": "base", "epoch": late}
    from fleet_worker.lifecycle.states import Event  # noqa: PLC0415 - of this test only
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


async def test_a_second_driver_is_refused_during_the_lease_of_the_first(
    serving: WorkerHarness,
) -> None:
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


async def test_a_fence_closes_the_latch_at_once_and_aborts_running_requests(
    serving: WorkerHarness,
) -> None:
    serving.engine.running = 5
    serving.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(serving.fence())
    await asyncio.sleep(0)
    assert not serving.agent.is_open, "before the engine has answered"
    serving.engine.gates["pause abort"].set()
    await fence

    assert serving.agent.phase is Phase.JOINING
    assert serving.engine.running == 0


async def test_a_fence_waits_for_requests_that_passed_the_latch(serving: WorkerHarness) -> None:
    serving.agent.quiescence.inside = 1
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: serving.engine.calls.count("pause abort") >= 2)
    assert not fence.done()
    serving.agent.quiescence.inside = 0
    await fence


async def test_a_fence_during_a_load_closes_the_latch_at_once_and_ends_in_joining(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
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


async def test_a_fence_wins_over_a_concurrent_admission(joining: WorkerHarness) -> None:
    joining.engine.gates["resume"] = asyncio.Event()
    admission = asyncio.create_task(joining.admit("base"))
    await soon(lambda: joining.engine.calls[-1] == "resume")
    joining.engine.calls.clear()
    quiescing = joining.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(joining.fence())
    await asyncio.sleep(0)
    joining.engine.gates["resume"].set()
    await soon(lambda: joining.engine.calls == ["pause abort"])
    assert not joining.agent.is_open, "the latch stays closed during the fence"
    quiescing.set()
    await asyncio.gather(admission, fence)

    assert joining.agent.phase is Phase.JOINING
    assert not joining.agent.is_open
    assert joining.engine.paused


async def test_a_worker_that_is_being_fenced_refuses_to_resume(serving: WorkerHarness) -> None:
    await serving.pause()
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    aborting = asyncio.create_task(serving.pause(PauseMode.ABORT))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    resume = asyncio.create_task(serving.resume("base"))
    await asyncio.sleep(0)  # it waits for the lock, in front of the fence
    assert serving.agent.epoch is not None
    request = FenceRequest(reason="a test", epoch=serving.agent.epoch)
    fence = asyncio.create_task(serving.agent.fence(request))
    await soon(lambda: not serving.agent.is_open)
    gate.set()
    await asyncio.gather(aborting, fence)

    assert (await refused(resume)).reason is Reason.WRONG_PHASE
    assert "resume" not in serving.engine.calls


async def test_a_drain_of_a_paused_worker_aborts_the_held_requests(serving: WorkerHarness) -> None:
    await serving.pause()
    serving.engine.running = 3
    await serving.agent.drain(patience_seconds=1)

    assert serving.agent.phase is Phase.DRAINING
    assert not serving.agent.is_open
    assert serving.engine.running == 0
    assert (await refused(serving.admit("base"))).reason is Reason.WRONG_PHASE


async def test_a_drain_lets_running_requests_finish(serving: WorkerHarness) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 2
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000))
    await soon(lambda: serving.agent.phase is Phase.DRAINING)
    state = serving.state
    assert (state.admitted, state.requests_running, state.requests_held) == (False, 2, 0)
    assert "pause abort" not in serving.engine.calls
    serving.engine.running = serving.agent.quiescence.inside = 0
    await drain

    assert serving.engine.paused


async def test_a_drain_lets_requests_that_passed_the_latch_continue(serving: WorkerHarness) -> None:
    await serving.pause()
    serving.engine.running = serving.agent.quiescence.inside = 1
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000))
    await soon(lambda: serving.engine.calls[-1:] == ["resume"])
    assert not serving.agent.is_open
    serving.engine.running = serving.agent.quiescence.inside = 0
    await drain


async def test_a_drain_aborts_requests_that_outlive_it_and_reports_them(
    serving: WorkerHarness,
) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 1
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    drain = asyncio.create_task(serving.agent.drain(patience_seconds=5, drain_timeout_seconds=0.01))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    assert serving.agent.quiescence.drain_timed_out
    serving.agent.quiescence.inside = 0
    gate.set()
    await drain


async def test_a_drain_reports_its_remaining_time(serving: WorkerHarness) -> None:
    assert 900 < await serving.agent.drain(patience_seconds=1000) <= 1000
    serving.engine.gates["pause abort"] = asyncio.Event()

    assert await serving.agent.drain(patience_seconds=0.01) == 0


async def test_a_drain_of_untrusted_weights_aborts_at_once(serving: WorkerHarness) -> None:
    await serving.pause()
    serving.engine.running = 1
    serving.agent.version = None
    await serving.agent.drain(patience_seconds=1, drain_timeout_seconds=1000)

    assert "resume" not in serving.engine.calls
    assert serving.engine.running == 0


@pytest.mark.parametrize(
    ("seconds", "drain_timed_out"), [pytest.param(0.01, True, id="after a drain"), (0, False)]
)
async def test_a_fence_reports_whether_aborted_requests_outlived_a_drain(
    serving: WorkerHarness, seconds: float, *, drain_timed_out: bool
) -> None:
    serving.engine.running = serving.agent.quiescence.inside = 1
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    fence = asyncio.create_task(serving.fence(drain=seconds))
    await soon(lambda: serving.engine.calls[-1:] == ["pause abort"])
    assert serving.agent.quiescence.drain_timed_out is drain_timed_out
    serving.agent.quiescence.inside = 0
    gate.set()
    await fence

    assert not serving.agent.quiescence.drain_timed_out


async def test_a_drain_does_not_wait_for_a_load(serving: WorkerHarness) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    await serving.agent.drain(patience_seconds=0.01)

    assert serving.agent.phase is Phase.DRAINING
    serving.engine.gates["load"].set()
    await refused(load)
    assert serving.agent.phase is Phase.DRAINING


# --- the state document -------------------------------------------------------------------------


async def test_the_state_counts_running_and_held_requests(serving: WorkerHarness) -> None:
    serving.engine.running = 4
    assert (serving.state.requests_running, serving.state.requests_held) == (4, 0)
    await serving.pause()
    assert (serving.state.requests_running, serving.state.requests_held) == (0, 4)


async def test_timings_add_up_over_the_swap(serving: WorkerHarness) -> None:
    await serving.staged_in_a_pause("1")
    serving.clock.advance(2)
    await serving.load("1")
    serving.clock.advance(3)
    await serving.resume("1")

    timings = serving.state.timings
    assert timings is not None
    assert timings.version == "1"
    assert timings.paused_seconds == 5
    assert timings.stage_seconds is not None


async def test_metrics_follow_the_state(serving: WorkerHarness) -> None:
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


async def test_a_fence_without_a_drain_timeout_overtakes_one_that_drains(
    serving: WorkerHarness,
) -> None:
    serving.agent.quiescence.inside = 1
    slow = asyncio.ensure_future(serving.fence(drain=60))
    await soon(lambda: serving.state.phase is Phase.PAUSING)
    again = asyncio.ensure_future(serving.fence(drain=60))
    await asyncio.sleep(0)
    assert not slow.done()

    at_once = asyncio.ensure_future(serving.fence())
    await soon(lambda: "pause abort" in serving.engine.calls)
    serving.agent.quiescence.inside = 0
    await asyncio.gather(slow, again, at_once)
    assert serving.state.phase is Phase.JOINING


async def test_a_pause_after_a_fence_that_drained_drains_again(serving: WorkerHarness) -> None:
    await serving.fence(drain=5)
    await serving.admit("base")

    assert not serving.agent.cut.is_set()


async def test_a_fence_that_drains_is_refused_while_a_pause_holds_the_requests(
    serving: WorkerHarness,
) -> None:
    await serving.pause()
    before = list(serving.engine.calls)

    refusal = await refused(serving.fence(drain=60))

    assert refusal.reason is Reason.WRONG_PHASE
    assert (serving.state.phase, serving.state.admitted) == (Phase.PAUSED, True)
    assert serving.engine.calls == before
    await serving.resume("base")
    await serving.fence(drain=60)
    assert serving.state.phase is Phase.JOINING


async def test_a_fence_without_a_drain_timeout_ends_the_requests_that_a_pause_holds(
    serving: WorkerHarness,
) -> None:
    await serving.pause()

    await serving.fence()

    assert (serving.state.phase, serving.state.admitted) == (Phase.JOINING, False)
