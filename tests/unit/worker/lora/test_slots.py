"""Slots of LoRA adapters: loading, serving, exchanging and removing versions."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from typing import Any

import pytest
from tests.support.adapters import CONFIG_FILE, WEIGHTS_FILE
from tests.support.fake_engine import touched, untouched
from tests.support.lora_harness import LoraHarness
from tests.support.present import present
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, failing, refused

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.engine.records import (
    FIRST_NUMBER,
    EngineAdapter,
    engine_name,
    weight_name_of,
)
from fleet_worker.errors import EngineFailure, Refusal
from fleet_worker.lora.files import PrivateAdapter
from fleet_worker.protocol import AdapterRequest, Phase, Reason


class SlowReads:
    """Reads of one version of an adapter that wait until the test lets them end."""

    def __init__(self, lora: LoraHarness, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        self.begun, self.end = threading.Event(), threading.Event()
        read = lora.harness.agent.lora._read

        def slow(request: AdapterRequest, *given: Any) -> PrivateAdapter:
            if request.version == version:
                self.begun.set()
                self.end.wait(20)
            return read(request, *given)

        monkeypatch.setattr(lora.harness.agent.lora, "_read", slow)


# --- putting ------------------------------------------------------------------------------------


async def test_an_adapter_is_loaded_before_it_is_served(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))

    assert lora.harness.engine.calls == ["add_adapter tuned@1", "serve_adapter tuned True"]
    (state,) = lora.harness.state.adapters
    assert (state.name, state.version, state.requests, state.retiring) == ("tuned", "1", 0, ())
    assert state.digest is not None
    assert state.size_bytes > 0
    slots = present(lora.harness.state.adapter_slots)
    assert (slots.total, slots.used, slots.max_rank) == (2, 1, 8)


async def test_putting_the_same_version_again_changes_nothing(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    await lora.put("1", path)
    digest = lora.harness.state.adapters[0].digest
    await lora.put("1", path, digest=digest)

    assert lora.harness.engine.calls.count("add_adapter tuned@1") == 1


@pytest.mark.parametrize("by_link", [False, True], ids=["rewritten", "a link that was moved"])
async def test_files_of_the_same_size_and_time_are_not_the_files_of_a_served_version(
    lora: LoraHarness, by_link: bool
) -> None:
    """A copy may keep the time. A peer that starts now reads these files under the same version."""
    link, one, two = lora.harness.root / "current", lora.write("one"), lora.write("two", seed=2)
    status = (one / WEIGHTS_FILE).stat()
    for name in (WEIGHTS_FILE, CONFIG_FILE):
        times = (one / name).stat()
        os.utime(two / name, ns=(times.st_atime_ns, times.st_mtime_ns))
    link.symlink_to(one)
    path = link if by_link else one
    await lora.put("1", path)
    if by_link:
        link.unlink()
        await lora.put("1", path)  # a deleted source is not a change
        link.symlink_to(two)
    else:
        for name in (WEIGHTS_FILE, CONFIG_FILE):
            (two / name).rename(one / name)
    assert (path / WEIGHTS_FILE).stat().st_mtime_ns == status.st_mtime_ns
    assert (path / WEIGHTS_FILE).stat().st_size == status.st_size

    assert (await lora.refused("1", path)).reason is Reason.VERSION_REUSED


async def test_engine_numbers_are_unique_and_differ_from_those_of_warm_up(
    lora: LoraHarness,
) -> None:
    for version in ("1", "2", "3"):
        await lora.put(version, lora.write(version, seed=int(version)))

    assert list(lora.harness.engine.adapters) == [FIRST_NUMBER + 2]
    assert weight_name_of("tuned@1.2@3fa9c1d04b2e") == WeightName("1.2", None, "3fa9c1d04b2e")
    of_a_run = engine_name("tuned", "1.2", "3fa9c1d04b2e", "run-8")
    assert weight_name_of(of_a_run) == WeightName("1.2", "run-8", "3fa9c1d04b2e")


async def test_a_swap_serves_the_new_version_and_unloads_the_old_one(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    await lora.put("2", lora.write("2", seed=2))

    assert lora.harness.engine.calls[-3:] == [
        "add_adapter tuned@2",
        "serve_adapter tuned True",
        "remove_adapter tuned@1",
    ]
    assert lora.in_slots == ["tuned@2"]


async def test_running_requests_keep_their_version(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    using = lora.harness.agent.adapters.using
    with using("tuned") as first:
        await lora.put("2", lora.write("2", seed=2))
        with using("tuned") as second:
            assert [weight_name_of(each.name).version for each in (first, second)] == ["1", "2"]
            assert lora.in_slots == ["tuned@1", "tuned@2"]
            (state,) = lora.harness.state.adapters
            assert (state.version, state.requests) == ("2", 1)
            assert [(r.version, r.requests) for r in state.retiring] == [("1", 1)]
    await soon(lambda: lora.in_slots == ["tuned@2"])
    assert lora.harness.state.adapters[0].retiring == ()


async def test_without_a_free_slot_a_version_is_refused_and_the_old_one_serves(
    lora: LoraHarness,
) -> None:
    await lora.put("1", lora.write("1"))
    with lora.harness.agent.adapters.using("tuned"):
        await lora.put("2", lora.write("2", seed=2))
        refusal = await lora.refused("3", lora.write("3", seed=3))

        assert refusal.reason is Reason.NO_ADAPTER_SLOT
        assert "tuned at 1 (1 request)" in refusal.message
        assert refusal.retry_after_seconds is not None
        assert lora.harness.state.adapters[0].version == "2"
    await soon(lambda: lora.in_slots == ["tuned@2"])
    await lora.put("3", lora.write("3", seed=3))
    assert lora.in_slots == ["tuned@3"]


async def test_a_sleeping_engine_refuses_adapters(lora: LoraHarness) -> None:
    lora.harness.agent.asleep = True
    refusal = await lora.refused("1", lora.write("one"))

    assert refusal.reason is Reason.WRONG_PHASE
    assert lora.in_slots == []


async def test_names_that_use_all_slots_leave_no_room_for_a_swap(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"), name="one")
    await lora.put("1", lora.write("other", seed=5), name="two")
    refusal = await lora.refused("2", lora.write("2", seed=2), name="one")

    assert refusal.reason is Reason.NO_ADAPTER_SLOT
    assert refusal.retry_after_seconds is None


async def test_deleting_the_directory_does_not_affect_the_adapter(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    before = lora.harness.engine.adapters.copy()
    shutil.rmtree(path)
    await lora.harness.stage("base-2")
    await lora.harness.pause()
    await lora.harness.load("base-2")

    # The load threw it out; the fake engine reads its files when it is put back.
    assert lora.harness.engine.adapters == before


async def test_the_files_that_the_engine_reads_cannot_be_changed(lora: LoraHarness) -> None:
    path = lora.write("1")
    await lora.put("1", path)
    (private,) = lora.private.iterdir()
    held = (private / WEIGHTS_FILE).read_bytes()
    (path / WEIGHTS_FILE).write_bytes(b"something else")

    assert (private / WEIGHTS_FILE).read_bytes() == held
    with pytest.raises(OSError, match="not permitted"):
        (private / WEIGHTS_FILE).write_bytes(b"x")


async def test_the_bytes_of_adapters_count_as_staged_memory(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    size = lora.harness.state.adapters[0].size_bytes
    budget = lora.harness.agent.staging.rules.budget_bytes
    assert lora.harness.agent.memory_left() == budget - size

    await lora.harness.stage("7")
    staged = present(lora.harness.state.staged)
    assert lora.harness.agent.memory_left() == budget - size - staged.size_bytes


async def test_an_adapter_without_memory_is_refused(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora.harness.agent, "memory_left", lambda: 10)
    refusal = await lora.refused("1", lora.write("1"))

    assert (refusal.reason, "memory" in refusal.message) == (Reason.NOT_AVAILABLE, True)


# --- removing -----------------------------------------------------------------------------------


async def test_a_removed_adapter_is_unloaded_with_its_last_request(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    with lora.harness.agent.adapters.using("tuned"):
        await lora.remove()
        (state,) = lora.harness.state.adapters
        assert (state.version, [r.requests for r in state.retiring]) == (None, [1])
        with (
            pytest.raises(Refusal, match="was removed"),
            lora.harness.agent.adapters.using("tuned"),
        ):
            pass
    await soon(lambda: lora.in_slots == [])
    assert lora.harness.state.adapters == ()


# --- failures -----------------------------------------------------------------------------------


async def test_if_the_engine_rejects_a_version_the_one_before_serves(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    lora.harness.engine.failures["add_adapter"] = [untouched()]
    await failing(lora.put("2", lora.write("2", seed=2)))

    (state,) = lora.harness.state.adapters
    assert state.version == "1"
    assert lora.in_slots == ["tuned@1"]
    failure = present(lora.harness.state.adapter_failure)
    assert (failure.name, failure.version, failure.reason) == ("tuned", "2", Reason.ENGINE_FAILED)
    await lora.put("2", lora.write("2", seed=2))
    assert lora.harness.state.adapter_failure is None


async def test_a_version_that_cannot_be_unloaded_keeps_its_slot_and_files(
    lora: LoraHarness,
) -> None:
    await lora.put("1", lora.write("1"))
    lora.harness.engine.failures["remove_adapter"] = [untouched()]
    await lora.put("2", lora.write("2", seed=2))

    (state,) = lora.harness.state.adapters
    assert (state.version, [r.version for r in state.retiring]) == ("2", ["1"])
    assert len(list(lora.private.iterdir())) == 2
    await lora.put("3", lora.write("3", seed=3))
    assert lora.in_slots == ["tuned@3"]


async def test_a_load_that_cannot_restore_adapters_fails(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    await lora.harness.staged_in_a_pause("7")
    lora.harness.engine.failures["add_adapter"] = [touched()]
    with pytest.raises(EngineFailure, match="could not be loaded again"):
        await lora.harness.load("7")

    assert lora.harness.state.phase is Phase.JOINING
    assert lora.harness.state.version == "base"
    assert lora.in_slots == ["tuned@1"]


async def test_adapters_are_restored_before_the_new_label_is_set(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    await lora.harness.staged_in_a_pause("7")
    lora.harness.engine.calls.clear()
    await lora.harness.load("7")

    assert lora.harness.engine.calls[1:] == [
        "probe",
        "add_adapter tuned@1",
        "reset_caches",
        "set_version 7",
    ]


@pytest.mark.parametrize("phase", [Phase.JOINING, Phase.PAUSED, Phase.SERVING])
async def test_joining_paused_and_serving_workers_accept_adapters(
    lora: LoraHarness, phase: Phase
) -> None:
    if phase is Phase.PAUSED:
        await lora.harness.pause()
    if phase is Phase.JOINING:
        await lora.harness.fence()
    await lora.put("1", lora.write("1"))

    assert lora.harness.state.phase is phase
    assert lora.in_slots == ["tuned@1"]


async def test_a_second_driver_cannot_change_adapters(lora: LoraHarness) -> None:
    await lora.harness.pause(holder="trainer")

    assert (await lora.refused("1", lora.write("1"))).reason is Reason.HELD_BY_ANOTHER
    await lora.put("1", lora.write("1"), holder="trainer")


async def test_an_adapter_cannot_have_the_models_name(lora: LoraHarness) -> None:
    refusal = await lora.refused("1", lora.write("1"), name="fake")

    assert refusal.reason is Reason.BAD_REQUEST


# --- identity -----------------------------------------------------------------------------------


async def test_a_label_belongs_to_one_adapter_only(lora: LoraHarness) -> None:
    await lora.put("1", lora.write("1"))
    await lora.remove()
    refusal = await lora.refused("1", lora.write("other", seed=2))

    assert refusal.reason is Reason.VERSION_REUSED
    await lora.put("1", lora.write("other", seed=2), name="another")


async def test_metrics_name_the_versions_that_requests_use(lora: LoraHarness) -> None:
    def value(name: str, **labels: str) -> float | None:
        return lora.harness.registry.get_sample_value(f"rlfleet_worker_{name}", labels)

    await lora.put("1", lora.write("1"))
    with lora.harness.agent.adapters.using("tuned"):
        await lora.put("2", lora.write("2", seed=2))
        assert value("adapter_info", adapter="tuned", version="2") == 1
        assert value("adapter_info", adapter="tuned", version="1") is None
        assert (value("adapter_slots"), value("adapter_slots_used")) == (2, 2)
    await soon(lambda: lora.in_slots == ["tuned@2"])
    await lora.remove()
    assert value("adapter_info", adapter="tuned", version="2") is None


async def test_a_version_is_a_run_and_a_number_with_one_digest(lora: LoraHarness) -> None:
    one, two = lora.write("run-7/step_40", seed=1), lora.write("run-8/step_40", seed=2)
    await lora.put("40", one, run_id="run-7")
    served = []
    for run_id in ("run-7", "run-8"):
        path = one if run_id == "run-7" else two
        await lora.put("40", path, run_id=run_id)
        (state,) = lora.harness.state.adapters
        assert (state.version, state.run_id) == ("40", run_id)
        served.append(state.digest)
    refusal = await lora.refused("40", lora.write("again", seed=3), run_id="run-8")

    assert len(set(served)) == 2
    assert refusal.reason is Reason.VERSION_REUSED
    failure = present(lora.harness.state.adapter_failure)
    assert (failure.version, failure.run_id) == ("40", "run-8")
    assert lora.harness.state.adapters[0].run_id == "run-8"


async def test_the_same_bytes_of_two_runs_are_loaded_as_two_versions(lora: LoraHarness) -> None:
    path = lora.write("shared", seed=1)
    numbers = []
    for run_id in ("run-7", "run-8"):
        await lora.put("40", path, run_id=run_id)
        numbers.append(set(lora.harness.engine.adapters))

    assert numbers[0].isdisjoint(numbers[1])
    assert lora.harness.state.adapters[0].run_id == "run-8"


# --- calls that overtake each other --------------------------------------------------------------


@pytest.mark.parametrize("stage_only", [False, True], ids=["put", "stage"])
@pytest.mark.parametrize("later", [True, False], ids=["another version", "a removal"])
async def test_a_later_call_supersedes_a_slow_one_for_the_same_adapter(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch, later: bool, stage_only: bool
) -> None:
    slow = SlowReads(lora, monkeypatch, "5")
    old = asyncio.create_task(lora.put("5", lora.write("5"), stage_only=stage_only))
    await soon(slow.begun.is_set)
    if later:
        await lora.put("6", lora.write("6", seed=2))
    else:
        await lora.remove()
    operation = lora.harness.state.operation
    assert operation is not None, "the slow read still runs"
    assert operation.version == "5"
    slow.end.set()

    assert (await refused(old)).reason is Reason.SUPERSEDED
    assert [(a.version, a.staged) for a in lora.harness.state.adapters] == [("6", None)] * later
    assert lora.harness.state.adapter_failures == ()
    await soon(lambda: len(list(lora.private.iterdir())) == int(later))


async def test_the_same_call_again_supersedes_nothing(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, path = SlowReads(lora, monkeypatch, "5"), lora.write("5")
    calls = [asyncio.create_task(lora.put("5", path)) for _ in range(2)]
    await soon(slow.begun.is_set)
    slow.end.set()
    await asyncio.gather(*calls)

    assert lora.in_slots == ["tuned@5"]
    assert len(list(lora.private.iterdir())) == 1


async def test_bytes_that_were_read_before_others_got_their_label_are_not_served(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, loads, end = lora.harness.engine, asyncio.Event(), asyncio.Event()
    add = engine.add_adapter

    async def slow(adapter: EngineAdapter) -> None:
        loads.set()
        await end.wait()
        await add(adapter)

    monkeypatch.setattr(engine, "add_adapter", slow)
    first = asyncio.create_task(lora.put("1", lora.write("one"), run_id="run"))
    await loads.wait()
    second = asyncio.create_task(lora.put("1", lora.write("two", seed=2), run_id="run"))
    calls = lora.harness.agent.lora
    await soon(lambda: len(list(lora.private.iterdir())) == 2 and not calls._preparing)
    end.set()
    await first
    (served,) = lora.harness.state.adapters

    assert (await refused(second)).reason is Reason.VERSION_REUSED
    assert lora.harness.state.adapters == (served,)


async def test_a_call_for_another_adapter_supersedes_nothing(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = SlowReads(lora, monkeypatch, "5")
    old = asyncio.create_task(lora.put("5", lora.write("5")))
    await soon(slow.begun.is_set)
    await lora.put("6", lora.write("6", seed=2), name="other")
    slow.end.set()
    await old

    assert lora.in_slots == ["other@6", "tuned@5"]


async def test_a_load_of_a_trainer_between_its_two_calls_does_not_replace_a_later_load(
    lora: LoraHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TrainerHarness.of(lora.harness).files
    check, later = files._check_still_named, str(lora.write("step_6", seed=2))

    async def overtaken(*arguments: Any) -> None:
        monkeypatch.setattr(files, "_check_still_named", check)
        assert await files.put_adapter(HOLDER, "tuned", later) == "6"

    monkeypatch.setattr(files, "_check_still_named", overtaken)
    refusal = await refused(files.put_adapter(HOLDER, "tuned", str(lora.write("step_5"))))

    assert refusal.reason is Reason.SUPERSEDED
    assert lora.in_slots == ["tuned@6"]


async def held_up(lora: LoraHarness, call: asyncio.Task[None], *, waiting: int) -> None:
    """Let a call run until it has ended, or is one of several that wait for the worker's lock."""
    lock = lora.harness.agent.lock
    await soon(lambda: call.done() or len(lock._waiters or ()) == waiting)


async def test_a_call_for_the_served_version_supersedes_a_removal_that_waits_for_the_lock(
    lora: LoraHarness,
) -> None:
    path = lora.write("5")
    await lora.put("5", path)
    async with lora.harness.agent.lock:
        removal = asyncio.create_task(lora.remove())
        await held_up(lora, removal, waiting=1)
        again = asyncio.create_task(lora.put("5", path))
        await held_up(lora, again, waiting=2)

    assert (await refused(removal)).reason is Reason.SUPERSEDED
    await again
    assert lora.in_slots == ["tuned@5"]


async def test_a_call_for_the_served_version_replaces_one_that_is_in_the_engine(
    lora: LoraHarness,
) -> None:
    path = lora.write("5")
    await lora.put("5", path)
    adding = lora.harness.engine.gates["add_adapter"] = asyncio.Event()
    newer = asyncio.create_task(lora.put("6", lora.write("6", seed=2)))
    await soon(lambda: "add_adapter tuned@6" in lora.harness.engine.calls)
    back = asyncio.create_task(lora.put("5", path))
    await held_up(lora, back, waiting=1)
    adding.set()
    await asyncio.gather(newer, back)

    assert lora.in_slots == ["tuned@5"]
