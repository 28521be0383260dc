"""A closed worker whose engine does not end its requests."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.support.worker_harness import (
    HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    refused,
    running,
    watchdog_of,
)

from fleet_worker.errors import EngineFailure
from fleet_worker.protocol import PauseMode, Phase, Reason


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_worker.lifecycle.quiesce._PATIENCE_SECONDS", 0.03)


async def fail_to_fence(harness: WorkerHarness) -> WorkerHarness:
    """Fence a worker whose engine does not let go of its requests."""
    harness.engine.running, harness.engine.stubborn = 1, True
    with pytest.raises(EngineFailure):
        await harness.fence()
    return harness


async def test_a_failed_fence_closes_the_worker_and_reports_unfinished_requests(
    serving: WorkerHarness,
) -> None:
    await fail_to_fence(serving)

    state = serving.state
    assert (state.phase, state.admitted, state.pause) == (Phase.JOINING, False, None)
    assert (state.requests_running, state.requests_held) == (1, 0)
    assert state.operation is not None
    assert state.operation.kind == "fence"


async def test_a_fence_whose_pause_fails_once_closes_the_worker(serving: WorkerHarness) -> None:
    serving.engine.failures["pause abort"] = [untouched()]
    await failing(serving.fence())
    assert serving.state.phase is Phase.JOINING
    await serving.fence()

    assert serving.agent.is_idle
    assert serving.state.operation is None


async def test_the_expiry_of_a_lease_does_not_resume_a_worker_whose_fence_failed(
    serving: WorkerHarness,
) -> None:
    await serving.pause()
    await fail_to_fence(serving)
    serving.clock.advance(31)
    await serving.agent.expire_lease()

    assert serving.engine.paused
    assert "resume" not in serving.engine.calls
    assert serving.state.phase is Phase.JOINING


async def test_the_expiry_of_a_lease_does_not_resume_a_worker_with_a_waiting_fence(
    serving: WorkerHarness,
) -> None:
    await serving.pause(lease=10)
    serving.clock.advance(11)
    gate = serving.engine.gates["pause abort"] = asyncio.Event()
    await serving.agent.lock.acquire()
    expiry = asyncio.create_task(serving.agent.expire_lease())
    await asyncio.sleep(0)  # it waits for the lock, in front of the fence
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: not serving.agent.is_open)
    serving.agent.lock.release()
    gate.set()
    await asyncio.gather(expiry, fence)

    assert "resume" not in serving.engine.calls
    assert serving.agent.is_idle


async def test_no_load_begins_while_a_request_can_generate(serving: WorkerHarness) -> None:
    await serving.stage("1")
    await fail_to_fence(serving)
    refusal = await refused(serving.load("1"))
    assert refusal.reason is Reason.WRONG_PHASE
    assert "end the requests" in refusal.message
    assert not [call for call in serving.engine.calls if call.startswith("load")]
    serving.engine.stubborn = False
    await serving.load("1")

    assert serving.engine.running == 0
    assert serving.state.version == "1"
    assert serving.agent.is_idle


async def test_a_load_while_joining_ends_requests_that_arrived_after_the_fence(
    joining: WorkerHarness,
) -> None:
    await joining.stage("1")
    joining.engine.calls.clear()
    joining.engine.running = 1  # its prompt was still being tokenized when the latch closed
    await joining.load("1")

    assert joining.engine.calls[0] == "pause abort"
    assert joining.engine.running == 0


async def test_an_admission_is_refused_until_all_requests_have_ended(
    serving: WorkerHarness,
) -> None:
    await fail_to_fence(serving)
    assert (await refused(serving.admit("base"))).reason is Reason.WRONG_PHASE
    assert serving.engine.paused
    serving.engine.stubborn = False
    await serving.admit("base")

    assert serving.state.phase is Phase.SERVING
    assert serving.engine.running == 0


async def test_a_failed_admission_leaves_a_closed_worker_whose_requests_end(
    joining: WorkerHarness,
) -> None:
    joining.engine.failures["resume"] = [untouched()]
    await failing(joining.admit("base"))
    assert joining.state.phase is Phase.JOINING
    assert not joining.agent.is_idle
    async with running(watchdog_of(joining)):
        await soon(lambda: joining.agent.is_idle)

    assert joining.engine.paused


async def test_a_failed_resume_leaves_the_engine_paused(serving: WorkerHarness) -> None:
    await serving.pause()
    serving.engine.failures["resume"] = [untouched()]
    await failing(serving.resume("base"))

    assert serving.engine.calls[-2:] == ["resume", "pause keep"]
    assert serving.state.phase is Phase.PAUSED
    await serving.resume("base")


async def test_a_pause_that_can_be_neither_made_nor_undone_closes_the_worker(
    serving: WorkerHarness,
) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    serving.engine.failures["resume"] = [untouched()]
    await failing(serving.pause())

    state = serving.state
    assert (state.phase, state.admitted) == (Phase.JOINING, False)
    async with running(watchdog_of(serving)):
        await soon(lambda: serving.agent.is_idle)


async def test_a_failed_pause_resumes_nothing_behind_a_closed_latch(serving: WorkerHarness) -> None:
    gate = serving.engine.gates["pause keep"] = asyncio.Event()
    serving.engine.failures["pause keep"] = [untouched()]
    pause = asyncio.create_task(serving.pause())
    await soon(lambda: serving.engine.calls == ["pause keep"])
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: not serving.agent.is_open)
    gate.set()
    await asyncio.gather(pause, fence, return_exceptions=True)

    assert "resume" not in serving.engine.calls
    assert serving.agent.is_idle


async def test_the_worker_keeps_aborting_requests_until_none_is_left(
    serving: WorkerHarness,
) -> None:
    await fail_to_fence(serving)
    async with running(watchdog_of(serving)):
        serving.engine.calls.clear()
        await soon(lambda: "pause abort" in serving.engine.calls)
        serving.engine.stubborn = False
        await soon(lambda: serving.agent.is_idle)

    assert serving.ended == []
    assert serving.state.operation is None


async def test_the_process_ends_if_its_requests_never_end(serving: WorkerHarness) -> None:
    await fail_to_fence(serving)
    async with running(watchdog_of(serving)):
        serving.clock.advance(59)
        await soon(lambda: serving.engine.calls.count("ping") > 0)
        assert serving.ended == []
        serving.clock.advance(2)
        await soon(lambda: serving.ended)

    assert "60 s" in serving.ended[0]


async def test_canary_prompts_that_cannot_be_aborted_leave_unfinished_requests(
    joining: WorkerHarness,
) -> None:
    joining.engine.failures["pause abort"] = [untouched()]
    await failing(joining.run_prompts())
    assert not joining.agent.is_idle
    await joining.admit("base")

    assert joining.state.phase is Phase.SERVING


async def test_a_worker_with_unfinished_requests_refuses_canary_prompts(
    serving: WorkerHarness,
) -> None:
    await fail_to_fence(serving)

    assert (await refused(serving.run_prompts())).reason is Reason.WRONG_PHASE
    assert "resume" not in serving.engine.calls


async def test_an_engine_woken_behind_a_closed_latch_generates_nothing(
    trainer: TrainerHarness,
) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    await trainer.harness.fence()
    await trainer.seat.wake(HOLDER, None)

    assert trainer.harness.state.phase is Phase.JOINING
    assert trainer.harness.engine.paused
    assert trainer.harness.agent.is_idle


async def test_a_failed_wake_leaves_a_paused_worker_paused(trainer: TrainerHarness) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    trainer.harness.engine.failures["wake"] = [untouched()]
    await failing(trainer.seat.wake(HOLDER, None))

    assert trainer.harness.engine.paused
    assert trainer.harness.state.phase is Phase.PAUSED


async def test_a_label_that_cannot_be_set_is_restored(trainer: TrainerHarness) -> None:
    path = str(await trainer.harness.stage("5"))
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await trainer.files.load(HOLDER, path, "5")
    trainer.harness.engine.failures["set_version"] = [untouched()]
    await failing(trainer.files.name_version(HOLDER, "6"))

    before, again = [c for c in trainer.harness.engine.calls if c.startswith("set_version")][-3::2]
    assert before == again
    assert trainer.harness.state.version == "5"


async def test_a_drain_of_an_engine_that_fails_in_any_way_ends_in_draining(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object) -> int:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(type(serving.engine), "unfinished", fails)
    await serving.agent.drain(patience_seconds=1)
    monkeypatch.undo()

    assert serving.agent.phase is Phase.DRAINING


async def test_a_serving_worker_with_a_waiting_fence_is_not_admitted_again(
    serving: WorkerHarness,
) -> None:
    serving.agent.close_latch()  # as a fence does that waits for its turn
    assert (await refused(serving.admit("base"))).reason is Reason.WRONG_PHASE
    assert not serving.agent.is_open
