"""Loads and admissions: their calls to the engine, and their result."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.present import present
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, failing, refused

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.remarks import NOT_IN_MEMORY
from fleet_worker.engine.limits import Limits
from fleet_worker.protocol import PauseMode, Phase, Reason

# --- starting and opening -----------------------------------------------------------------------


async def test_a_started_worker_is_paused_labelled_and_closed(joining: WorkerHarness) -> None:
    assert joining.engine.calls == ["pause abort", "set_version base"]
    assert joining.agent.phase is Phase.JOINING
    assert not joining.agent.is_open
    assert joining.engine.label == "base"


async def test_an_admission_resumes_the_engine_and_opens_the_latch(joining: WorkerHarness) -> None:
    await joining.admit("base")

    assert joining.agent.is_open
    assert not joining.engine.paused


async def test_an_admission_at_another_version_is_refused(joining: WorkerHarness) -> None:
    assert (await refused(joining.admit("7"))).reason is Reason.VERSION_MISMATCH
    assert joining.engine.paused


# --- the swap -----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [PauseMode.KEEP, PauseMode.ABORT])
async def test_an_engine_that_generates_in_a_pause_is_paused_before_the_weights_change(
    serving: WorkerHarness, mode: PauseMode
) -> None:
    path = await serving.stage("1")
    await serving.pause(mode)
    serving.engine.paused = False
    await serving.load("1")

    assert serving.engine.calls[:3] == [f"pause {mode}", f"pause {mode}", f"load {path}"]


async def test_a_worker_whose_engine_does_not_say_whether_it_is_paused_is_closed(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["is paused"] = [untouched()]
    await failing(serving.load("1"))

    assert not serving.agent.is_open
    assert serving.engine.weights == ""


async def test_a_swap_calls_the_engine_in_the_order_that_keeps_labels_correct(
    serving: WorkerHarness,
) -> None:
    path = await serving.loaded_in_a_pause("1")
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


async def test_the_state_has_the_remarks_on_the_weights_in_the_engine(
    serving: WorkerHarness,
) -> None:
    cast = write_tiny(serving.root / "1", 1.0, in_float32=True, eos_token_id=7)
    await serving.stage("1", cast)
    assert serving.state.remarks == (), "they are staged only"
    await serving.apply("1")

    defaults, types = serving.state.remarks
    assert "eos_token_id [7]" in defaults
    assert "2 tensors from F32 to BF16" in types
    await serving.stage("2")
    await serving.apply("2")
    assert serving.state.remarks == ()


async def test_the_version_changes_at_the_end_of_the_load(serving: WorkerHarness) -> None:
    await serving.stage("1", run_id="run-7")
    await serving.pause()
    serving.engine.gates["set_version"] = asyncio.Event()
    load = asyncio.create_task(serving.load("1"))
    await soon(lambda: "set_version 1" in serving.engine.calls)

    assert serving.agent.version == "base"
    assert serving.state.phase is Phase.LOADING
    operation = present(serving.state.operation)
    assert (operation.kind, operation.version, operation.run_id) == ("load", "1", "run-7")
    serving.engine.gates["set_version"].set()
    await load
    assert serving.agent.version == "1"


async def test_staging_does_not_call_the_engine(serving: WorkerHarness) -> None:
    await serving.stage("1")

    assert serving.engine.calls == []
    assert serving.state.staged is not None


async def test_staging_the_loaded_version_does_nothing(serving: WorkerHarness) -> None:
    await serving.stage("base", serving.root / "base")

    assert serving.state.staged is None


async def test_a_refused_stage_is_reported_until_the_next_success(serving: WorkerHarness) -> None:
    await refused(serving.stage("1", serving.root / "nothing"))
    serving.clock.advance(5)
    failure = present(serving.state.stage_failure)
    assert (failure.version, failure.reason, failure.age_seconds) == ("1", Reason.SOURCE_ABSENT, 5)

    await serving.stage("1")
    assert serving.state.stage_failure is None


async def test_refusals_of_several_versions_are_reported_newest_first(
    serving: WorkerHarness,
) -> None:
    for version in ("1", "2", "1", "3", "4", "5"):
        await refused(serving.stage(version, serving.root / "nothing"))
        serving.clock.advance(5)
    newest, earlier = serving.state.stage_failure, serving.state.earlier_stage_failures
    assert newest is not None
    assert newest.version == "5"
    assert [(f.version, f.age_seconds) for f in earlier] == [("4", 10), ("3", 15), ("1", 20)]


async def test_a_refusal_stays_reported_after_a_stage_of_another_version(
    serving: WorkerHarness,
) -> None:
    """Otherwise the operator would try the refused version again at once, and read both in turn."""
    await refused(serving.stage("2", serving.root / "nothing"))
    serving.clock.advance(5)
    await refused(serving.stage("1", serving.root / "nothing"))
    await serving.stage("1")

    failure = present(serving.state.stage_failure)
    assert (failure.version, failure.age_seconds) == ("2", 5)
    assert serving.state.earlier_stage_failures == ()


async def test_a_stage_that_finds_its_weights_in_the_engine_ends_their_refusal(
    serving: WorkerHarness,
) -> None:
    await refused(serving.stage("base", serving.root / "nothing"))
    assert serving.state.stage_failure is not None
    await serving.stage("base", serving.root / "base")

    assert serving.state.stage_failure is None


async def test_two_concurrent_loads_of_a_version_load_once(serving: WorkerHarness) -> None:
    await serving.staged_in_a_pause("1")
    await asyncio.gather(serving.load("1"), serving.load("1"))

    assert sum(call.startswith("load") for call in serving.engine.calls) == 1


async def test_files_changed_since_staging_are_refused_before_the_engine_is_touched(
    serving: WorkerHarness,
) -> None:
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.staged_in_a_pause("1")
    staged = present(serving.agent.staging.staged)
    write_tiny(path, 9.0)
    refusal = await refused(serving.load("1"))

    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    await soon(lambda: staged.checkpoint.files == ())
    assert serving.state.staged is None, "staging it again reads what is there now"
    assert not any(call.startswith("load") for call in serving.engine.calls)
    assert (serving.agent.phase, serving.agent.version) == (Phase.PAUSED, "base")
    await serving.stage("1")
    await serving.load("1")
    assert serving.agent.version == "1", "staged again, it loads"


async def test_held_bytes_are_loaded_though_the_directory_has_changed(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = await serving.stage("1")
    staged = present(serving.state.staged)
    assert staged.in_memory
    await serving.pause()
    write_tiny(path, 9.0)

    def asked(*_arguments: object, **_named: object) -> None:
        pytest.fail("the store was asked while the fleet is paused")

    for name in ("fstat", "stat", "open", "listdir", "pread", "preadv"):
        monkeypatch.setattr(os, name, asked)
    await serving.load("1")
    await serving.resume("1")
    monkeypatch.undo()

    assert (serving.state.version, serving.state.digest) == ("1", staged.digest)


async def test_a_hanging_file_system_during_a_pause_blocks_neither_fence_nor_lease(
    serving: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    serving.agent.limits = Limits(files_seconds=0.05)
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    await serving.staged_in_a_pause("1")
    answers = threading.Event()
    monkeypatch.setattr(Checkpoint, "check_unread", lambda _: answers.wait(30))
    refusal = await refused(serving.load("1"))
    state = serving.state
    await serving.fence()
    answers.set()

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert present(state.load_failure).reason is Reason.SOURCE_UNREADABLE
    assert (state.phase, state.version) == (Phase.PAUSED, "base"), "the engine was not touched"
    assert serving.state.phase is Phase.JOINING
    assert serving.state.version == "base"


async def test_a_load_that_fails_with_an_unchanged_model_leaves_the_worker_paused_on_the_old_weights(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["load"] = [untouched()]
    await failing(serving.load("1"))

    state = serving.state
    assert (state.phase, state.version) == (Phase.PAUSED, "base")
    assert state.load_failure is not None
    assert state.staged is not None, "it may be tried again"
    await serving.load("1")
    assert serving.state.load_failure is None


@pytest.mark.parametrize("step", ["load", "probe", "reset_caches", "set_version"])
async def test_a_load_that_breaks_the_engine_is_undone_behind_a_closed_latch(
    serving: WorkerHarness, step: str
) -> None:
    good = serving.agent.good.checkpoint.path
    await serving.staged_in_a_pause("1")
    serving.engine.failures[step] = [touched(Reason.PROBE_FAILED)]
    await failing(serving.load("1"))

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


async def test_requests_are_refused_while_the_last_good_weights_are_restored(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
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
    await failing(load)


async def test_the_process_ends_if_the_last_good_weights_cannot_be_restored(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    serving.engine.failures["load"] = [touched(), touched()]
    await failing(serving.load("1"))

    assert len(serving.ended) == 1
    assert "base could not be loaded again" in serving.ended[0]
    assert serving.agent.phase is Phase.BROKEN
    assert serving.agent.version is None


@pytest.mark.parametrize("in_memory", [True, False])
async def test_a_load_of_files_that_change_meanwhile_fails_unless_they_are_held(
    serving: WorkerHarness, in_memory: bool
) -> None:
    if not in_memory:
        object.__setattr__(serving.agent.staging.rules, "budget_bytes", 0)
    path = await serving.staged_in_a_pause("1")
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
    assert (await failing(load)).reason is Reason.CHECKPOINT_CHANGED
    assert (serving.agent.phase, serving.agent.version) == (Phase.JOINING, "base")


@pytest.mark.parametrize(("budget", "remarks"), [(1, (NOT_IN_MEMORY,)), (0, ()), (1 << 20, ())])
async def test_a_version_without_room_in_the_staging_memory_says_so_unless_the_fleet_has_none(
    serving: WorkerHarness, budget: int, remarks: tuple[str, ...]
) -> None:
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", budget)
    await serving.loaded_in_a_pause("1")

    assert serving.state.remarks == remarks


async def test_last_good_weights_with_changed_files_are_not_restored(
    serving: WorkerHarness,
) -> None:
    await serving.staged_in_a_pause("1")
    with (serving.root / "base" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    serving.engine.failures["probe"] = [touched()]
    await failing(serving.load("1"))

    assert len(serving.ended) == 1, "their label would lie"
    assert not any(call.endswith("/base") for call in serving.engine.calls)


async def test_the_bytes_of_the_last_good_version_are_kept_until_the_next_load(
    serving: WorkerHarness,
) -> None:
    await serving.loaded_in_a_pause("1")
    first = serving.agent.good.checkpoint
    assert first.held
    await serving.stage("2")
    assert first.held, "both fit into the budget"
    await serving.load("2")

    await soon(lambda: first.files == ())


async def test_the_last_good_version_is_released_if_both_do_not_fit(serving: WorkerHarness) -> None:
    await serving.loaded_in_a_pause("1")
    good = serving.agent.good
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", good.checkpoint.size_bytes + 10)
    await serving.stage("2")

    assert good.checkpoint.held == {}
    assert good.checkpoint.files, "its files stay open: it can still be put back"
    assert set(good.checkpoint.tensor_digests()) == set(good.checkpoint.tensors)
    assert present(serving.state.staged).in_memory


async def test_during_a_load_the_bytes_for_a_restore_are_not_released(
    serving: WorkerHarness,
) -> None:
    await serving.loaded_in_a_pause("1")
    good = serving.agent.good
    await serving.stage("2")
    object.__setattr__(serving.agent.staging.rules, "budget_bytes", good.checkpoint.size_bytes + 10)
    gate = serving.engine.gates["load"] = asyncio.Event()
    load = asyncio.create_task(serving.load("2"))
    await soon(lambda: serving.agent.phase is Phase.LOADING)
    await serving.stage("3")

    assert good.checkpoint.held
    assert present(serving.state.staged).in_memory is False, "there is no room for it now"
    gate.set()
    await load
