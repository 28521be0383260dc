"""The agent: what each call does to the engine, and what it leaves behind."""

from __future__ import annotations

import asyncio
import shutil

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.core.refusals import EngineFailure, Refusal
from fleet_worker.protocol import Epoch, PauseMode, PauseRequest, Phase, Reason


async def refused(call: object) -> Refusal:
    with pytest.raises(Refusal) as refusal:
        await call  # type: ignore[misc] # a coroutine
    return refusal.value


# --- starting and opening -----------------------------------------------------------------------


async def test_a_worker_that_comes_up_is_paused_labelled_and_closed(joining: Bench) -> None:
    assert joining.engine.calls == ["pause abort", "set_version base"]
    assert joining.agent.phase is Phase.JOINING
    assert not joining.agent.is_open
    assert joining.engine.label == "base"


async def test_an_admission_resumes_the_engine_and_opens_the_latch(joining: Bench) -> None:
    await joining.admit("base")

    assert joining.agent.is_open
    assert not joining.engine.paused


async def test_an_admission_at_another_version_is_refused(joining: Bench) -> None:
    assert (await refused(joining.admit("7"))).reason is Reason.VERSION_MISMATCH
    assert joining.engine.paused


async def test_a_failing_resume_leaves_the_latch_closed(joining: Bench) -> None:
    joining.engine.failures["resume"] = [untouched()]
    with pytest.raises(EngineFailure):
        await joining.admit("base")

    assert not joining.agent.is_open


# --- the swap -----------------------------------------------------------------------------------


async def test_a_swap_calls_the_engine_in_the_order_that_keeps_labels_honest(
    serving: Bench,
) -> None:
    path = await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    assert serving.agent.version == "1"
    await serving.resume("1")

    assert serving.engine.calls == [
        "pause keep",
        f"load {path}",
        "probe",
        "reset_caches",
        "set_version 1",
        "resume",
    ]


async def test_a_label_that_was_loaded_stands_for_its_weights_from_then_on(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    await serving.resume("1")
    other = serving.stage("1", write_tiny(serving.root / "other", 9.0))

    assert (await refused(other)).reason is Reason.VERSION_REUSED
    assert serving.agent.labels.order["1"] > serving.agent.labels.order["base"]


async def test_the_version_changes_only_after_the_whole_load(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.gates["set_version"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: "set_version 1" in serving.engine.calls)

    assert serving.agent.version == "base"
    assert serving.state.phase is Phase.LOADING
    assert serving.state.operation is not None
    assert serving.state.operation.kind == "load"
    serving.engine.gates["set_version"].set()
    await load
    assert serving.agent.version == "1"


async def test_staging_calls_no_engine(serving: Bench) -> None:
    await serving.stage("1")

    assert serving.engine.calls == []
    assert serving.state.staged is not None


async def test_staging_what_is_in_the_engine_does_nothing(serving: Bench) -> None:
    await serving.stage("base", serving.root / "base")

    assert serving.state.staged is None


async def test_a_refused_stage_is_kept_until_the_next_success(serving: Bench) -> None:
    await refused(serving.stage("1", serving.root / "nothing"))
    serving.clock.advance(5)
    failure = serving.state.stage_failure
    assert failure is not None
    assert (failure.version, failure.reason, failure.age_seconds) == (
        "1",
        Reason.SOURCE_NOT_FOUND,
        5,
    )

    await serving.stage("1")
    assert serving.state.stage_failure is None


async def test_loading_again_what_is_loaded_does_nothing(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    serving.engine.calls.clear()
    await serving.load("1")

    assert serving.engine.calls == []


async def test_two_loads_at_once_load_once(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    await asyncio.gather(serving.load("1"), serving.load("1"))

    assert sum(call.startswith("load") for call in serving.engine.calls) == 1


async def test_files_changed_since_staging_are_refused_before_the_engine_is_touched(
    serving: Bench,
) -> None:
    path = await serving.stage("1")
    await serving.pause()
    shutil.rmtree(path)
    write_tiny(path, 9.0)
    refusal = await refused(serving.load("1"))

    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    assert not any(call.startswith("load") for call in serving.engine.calls)
    assert (serving.agent.phase, serving.agent.version) == (Phase.PAUSED, "base")
    await serving.stage("1")
    await serving.load("1")
    assert serving.agent.version == "1", "staged anew, it loads"


async def test_a_load_that_fails_untouched_leaves_the_worker_paused_on_the_old_weights(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["load"] = [untouched()]
    with pytest.raises(EngineFailure):
        await serving.load("1")

    state = serving.state
    assert (state.phase, state.version) == (Phase.PAUSED, "base")
    assert state.load_failure is not None
    assert state.staged is not None, "it may be tried again"
    await serving.load("1")
    assert serving.state.load_failure is None


@pytest.mark.parametrize("step", ["load", "probe", "reset_caches", "set_version"])
async def test_a_load_that_fails_inside_the_engine_is_undone_behind_a_closed_latch(
    serving: Bench, step: str
) -> None:
    good = serving.agent.good.checkpoint.path
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures[step] = [touched(Reason.PROBE_FAILED)]
    with pytest.raises(EngineFailure):
        await serving.load("1")

    state = serving.state
    assert (state.phase, state.admitted, state.version) == (Phase.JOINING, False, "base")
    assert state.pause is None
    assert state.load_failure is not None
    assert (state.load_failure.version, state.load_failure.reason) == ("1", Reason.PROBE_FAILED)
    assert serving.engine.weights == good
    assert serving.engine.label == "base"
    assert serving.engine.calls.count("probe") >= 1
    assert serving.engine.paused
    assert (await refused(serving.resume("base"))).reason is Reason.WRONG_PHASE
    await serving.admit("base")
    assert serving.ended == []


async def test_while_the_last_good_weights_are_put_back_nobody_gets_in(serving: Bench) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["probe"] = [touched()]
    serving.engine.gates["reset_caches"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.engine.calls[-1] == "reset_caches")

    state = serving.state
    assert (state.phase, state.admitted, state.version, state.source) == (
        Phase.BROKEN,
        False,
        None,
        None,
    )
    assert (await refused(serving.stage("2"))).reason is Reason.BROKEN
    serving.engine.gates["reset_caches"].set()
    with pytest.raises(EngineFailure):
        await load


async def test_if_the_last_good_weights_cannot_be_put_back_the_process_ends(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    serving.engine.failures["load"] = [touched(), touched()]
    with pytest.raises(EngineFailure):
        await serving.load("1")

    assert len(serving.ended) == 1
    assert "base could not be put back" in serving.ended[0]
    assert serving.agent.phase is Phase.BROKEN
    assert serving.agent.version is None


async def test_a_mistake_in_the_middle_of_a_load_is_treated_as_a_broken_engine(
    serving: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await serving.stage("1")
    await serving.pause()
    probe = serving.engine.probe

    async def stumble() -> None:
        monkeypatch.setattr(serving.engine, "probe", probe)
        raise KeyError("unforeseen")

    monkeypatch.setattr(serving.engine, "probe", stumble)
    with pytest.raises(EngineFailure, match="KeyError"):
        await serving.load("1")

    assert (serving.agent.phase, serving.agent.version) == (Phase.JOINING, "base")
    assert serving.engine.label == "base"


@pytest.mark.parametrize("in_memory", [True, False])
async def test_files_written_to_while_the_engine_reads_them_break_the_load_unless_they_are_held(
    serving: Bench,
    in_memory: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    if not in_memory:
        object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.stage("1")
    await serving.pause()
    serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: serving.engine.calls[-1].startswith("load"))
    with (path / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    serving.engine.gates["load"].set()
    if in_memory:
        await load
        assert serving.agent.version == "1"
        return
    with pytest.raises(EngineFailure) as failure:
        await load
    assert failure.value.reason is Reason.CHECKPOINT_CHANGED
    assert (serving.agent.phase, serving.agent.version) == (Phase.JOINING, "base")


async def test_last_good_weights_whose_files_were_written_to_are_not_put_back(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    with (serving.root / "base" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    serving.engine.failures["probe"] = [touched()]
    with pytest.raises(EngineFailure):
        await serving.load("1")

    assert len(serving.ended) == 1, "their label would lie"
    assert not any(call.endswith("/base") for call in serving.engine.calls)


async def test_the_bytes_of_the_last_good_version_are_kept_until_the_next_load(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    first = serving.agent.good.checkpoint
    assert first.held
    await serving.stage("2")
    assert first.held, "both fit into the budget"
    await serving.load("2")

    await soon(lambda: first.files == ())


async def test_the_bytes_of_the_last_good_version_go_when_both_do_not_fit(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    good = serving.agent.good
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", good.checkpoint.size_bytes + 10)
    await serving.stage("2")

    assert good.checkpoint.held == {}
    assert good.checkpoint.files, "its files stay open: it can still be put back"
    assert serving.state.staged is not None
    assert serving.state.staged.in_memory


async def test_while_a_load_runs_the_bytes_that_it_may_have_to_put_back_are_not_given_up(
    serving: Bench,
) -> None:
    await serving.stage("1")
    await serving.pause()
    await serving.load("1")
    good = serving.agent.good
    await serving.stage("2")
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", good.checkpoint.size_bytes + 10)
    gate = serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("2"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    await serving.stage("3")

    assert good.checkpoint.held
    assert serving.state.staged is not None
    assert serving.state.staged.in_memory is False, "there is no room for it now"
    gate.set()
    await load


# --- the whole swap in one call -----------------------------------------------------------------


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
    path = await serving.stage("1")
    shutil.rmtree(path)
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


# --- pauses -------------------------------------------------------------------------------------


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
    await soon(lambda: serving.engine.calls[-1] == "pause abort")
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
    assert value("version_info", version="base") == 1
    await serving.stage("1")
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
    assert value("version_info", version="base") is None
    assert value("version_info", version="1") == 1
