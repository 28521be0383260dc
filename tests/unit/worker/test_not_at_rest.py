"""A closed worker whose engine does not come to rest: fences, loads, admissions, leases, the end."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import untouched
from tests.support.waiting import soon
from tests.unit.worker.conftest import WHO, Bench, Trainer, refused
from tests.unit.worker.test_watch import running, watch_of

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import PauseMode, Phase, Reason


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_worker.runtime.quiesce._PATIENCE_SECONDS", 0.03)


async def fenced_in_vain(bench: Bench) -> Bench:
    """Fence a worker whose engine does not let go of its requests."""
    bench.engine.running, bench.engine.stubborn = 1, True
    with pytest.raises(EngineFailure):
        await bench.fence()
    return bench


async def test_a_fence_that_fails_closes_the_worker_and_says_that_it_is_not_at_rest(
    serving: Bench,
) -> None:
    await fenced_in_vain(serving)

    state = serving.state
    assert (state.phase, state.admitted, state.pause) == (Phase.JOINING, False, None)
    assert (state.requests_running, state.requests_held) == (1, 0)
    assert state.operation is not None
    assert state.operation.kind == "fence"


async def test_a_fence_whose_pause_fails_once_closes_the_worker_too(serving: Bench) -> None:
    serving.engine.failures["pause abort"] = [untouched()]
    with pytest.raises(EngineFailure):
        await serving.fence()
    assert serving.state.phase is Phase.JOINING
    await serving.fence()

    assert serving.agent.is_at_rest
    assert serving.state.operation is None


async def test_the_end_of_a_lease_does_not_resume_a_worker_whose_fence_has_failed(
    serving: Bench,
) -> None:
    await serving.pause()
    await fenced_in_vain(serving)
    serving.clock.advance(31)
    await serving.agent.expire_lease()

    assert serving.engine.paused
    assert "resume" not in serving.engine.calls
    assert serving.state.phase is Phase.JOINING


async def test_the_end_of_a_lease_does_not_resume_a_worker_that_is_about_to_be_fenced(
    serving: Bench,
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
    assert serving.agent.is_at_rest


async def test_no_load_begins_while_a_request_can_still_generate(serving: Bench) -> None:
    await serving.stage("1")
    await fenced_in_vain(serving)
    refusal = await refused(serving.load("1"))
    assert refusal.reason is Reason.WRONG_PHASE
    assert "rest" in refusal.message
    assert not [call for call in serving.engine.calls if call.startswith("load")]
    serving.engine.stubborn = False
    await serving.load("1")

    assert serving.engine.running == 0
    assert serving.state.version == "1"
    assert serving.agent.is_at_rest


async def test_a_load_from_joining_ends_what_came_to_the_engine_since_the_fence(
    joining: Bench,
) -> None:
    await joining.stage("1")
    joining.engine.calls.clear()
    joining.engine.running = 1  # its prompt was still being tokenized when the latch closed
    await joining.load("1")

    assert joining.engine.calls[0] == "pause abort"
    assert joining.engine.running == 0


async def test_a_load_from_paused_pauses_an_engine_that_somebody_has_resumed(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.paused = False
    await serving.load("1")

    assert serving.engine.paused
    assert serving.state.version == "1"


async def test_an_admission_is_refused_until_the_engine_is_at_rest(serving: Bench) -> None:
    await fenced_in_vain(serving)
    assert (await refused(serving.admit("base"))).reason is Reason.WRONG_PHASE
    assert serving.engine.paused
    serving.engine.stubborn = False
    await serving.admit("base")

    assert serving.state.phase is Phase.SERVING
    assert serving.engine.running == 0


async def test_an_admission_that_fails_leaves_a_closed_worker_that_comes_to_rest(
    joining: Bench,
) -> None:
    joining.engine.failures["resume"] = [untouched()]
    with pytest.raises(EngineFailure):
        await joining.admit("base")
    assert joining.state.phase is Phase.JOINING
    assert not joining.agent.is_at_rest
    async with running(watch_of(joining)):
        await soon(lambda: joining.agent.is_at_rest)

    assert joining.engine.paused


async def test_a_resume_that_fails_leaves_the_engine_paused(serving: Bench) -> None:
    await serving.pause()
    serving.engine.failures["resume"] = [untouched()]
    with pytest.raises(EngineFailure):
        await serving.resume("base")

    assert serving.engine.calls[-2:] == ["resume", "pause keep"]
    assert serving.state.phase is Phase.PAUSED
    await serving.resume("base")


async def test_a_pause_that_can_be_neither_made_nor_taken_back_closes_the_worker(
    serving: Bench,
) -> None:
    serving.engine.failures["pause keep"] = [untouched()]
    serving.engine.failures["resume"] = [untouched()]
    with pytest.raises(EngineFailure):
        await serving.pause()

    state = serving.state
    assert (state.phase, state.admitted) == (Phase.JOINING, False)
    async with running(watch_of(serving)):
        await soon(lambda: serving.agent.is_at_rest)


async def test_a_pause_that_fails_resumes_nothing_behind_a_closed_latch(serving: Bench) -> None:
    gate = serving.engine.gates["pause keep"] = asyncio.Event()
    serving.engine.failures["pause keep"] = [untouched()]
    pause = asyncio.create_task(serving.pause())
    await soon(lambda: serving.engine.calls == ["pause keep"])
    fence = asyncio.create_task(serving.fence())
    await soon(lambda: not serving.agent.is_open)
    gate.set()
    await asyncio.gather(pause, fence, return_exceptions=True)

    assert "resume" not in serving.engine.calls
    assert serving.agent.is_at_rest


async def test_the_worker_goes_on_ending_requests_until_it_is_at_rest(serving: Bench) -> None:
    await fenced_in_vain(serving)
    async with running(watch_of(serving)):
        serving.engine.calls.clear()
        await soon(lambda: "pause abort" in serving.engine.calls)
        serving.engine.stubborn = False
        await soon(lambda: serving.agent.is_at_rest)

    assert serving.ended == []
    assert serving.state.operation is None


async def test_the_process_of_a_worker_that_does_not_come_to_rest_ends(serving: Bench) -> None:
    await fenced_in_vain(serving)
    async with running(watch_of(serving)):
        serving.clock.advance(59)
        await soon(lambda: serving.engine.calls.count("ping") > 0)
        assert serving.ended == []
        serving.clock.advance(2)
        await soon(lambda: serving.ended)

    assert "rest" in serving.ended[0]


async def test_a_probe_whose_end_fails_leaves_a_worker_that_is_not_at_rest(joining: Bench) -> None:
    joining.engine.failures["pause abort"] = [untouched()]
    with pytest.raises(EngineFailure):
        await joining.probe()
    assert not joining.agent.is_at_rest
    await joining.admit("base")

    assert joining.state.phase is Phase.SERVING


async def test_a_worker_that_is_not_at_rest_is_not_probed(serving: Bench) -> None:
    await fenced_in_vain(serving)

    assert (await refused(serving.probe())).reason is Reason.WRONG_PHASE
    assert "resume" not in serving.engine.calls


async def test_an_engine_that_was_woken_behind_a_closed_latch_generates_nothing(
    trainer: Trainer,
) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    await trainer.bench.fence()
    await trainer.driver.wake(WHO, None)

    assert trainer.bench.state.phase is Phase.JOINING
    assert trainer.bench.engine.paused
    assert trainer.bench.agent.is_at_rest


async def test_a_wake_that_fails_leaves_a_paused_worker_paused(trainer: Trainer) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    trainer.bench.engine.failures["wake"] = [untouched()]
    with pytest.raises(EngineFailure):
        await trainer.driver.wake(WHO, None)

    assert trainer.bench.engine.paused
    assert trainer.bench.state.phase is Phase.PAUSED


async def test_a_label_that_cannot_be_set_is_set_back(trainer: Trainer) -> None:
    path = str(await trainer.bench.stage("5"))
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    await trainer.driver.load(WHO, path, "5")
    trainer.bench.engine.failures["set_version"] = [untouched()]
    with pytest.raises(EngineFailure):
        await trainer.driver.name_version(WHO, "6")

    before, again = [c for c in trainer.bench.engine.calls if c.startswith("set_version")][-3::2]
    assert before == again
    assert trainer.bench.state.version == "5"


async def test_a_drain_whose_engine_fails_in_any_way_still_ends_in_draining(
    serving: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: object) -> int:
        raise RuntimeError("a mistake")

    monkeypatch.setattr(type(serving.engine), "unfinished", fails)
    await serving.agent.drain(patience_seconds=1)
    monkeypatch.undo()

    assert serving.agent.phase is Phase.DRAINING


async def test_a_serving_worker_that_is_being_fenced_is_not_admitted_again(
    serving: Bench,
) -> None:
    serving.agent.close_latch()  # as a fence does that waits for its turn
    with pytest.raises(Refusal) as refusal:
        await serving.admit("base")

    assert refusal.value.reason is Reason.WRONG_PHASE
    assert not serving.agent.is_open
