"""Trainers that drive a worker: the cache, sleep, and weights over a collective."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import BASE_DIGEST
from tests.support.waiting import soon
from tests.support.worker_harness import (
    HOLDER,
    OTHER_HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    refused,
    start_worker,
    step,
)

from fleet_worker.protocol import PauseMode, Phase, Reason
from fleet_worker.trainer.transfers import TransferRoom

# --- the cache ----------------------------------------------------------------------------------


async def test_tokens_after_a_kept_cache_name_the_older_weights(trainer: TrainerHarness) -> None:
    harness = trainer.harness
    beginning = harness.agent.kept.begin()
    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=True)
    pause = harness.state.pause
    assert pause is not None
    assert pause.cache_kept
    await trainer.files.load(HOLDER, step(trainer, 5))
    await trainer.seat.resume(HOLDER)

    assert harness.engine.calls[0] == "pause keep and keep"
    assert "reset_caches" not in harness.engine.calls
    read = harness.agent.kept.read_from(harness.engine.raw_label, beginning, found_cached=False)
    assert read == f"base@{BASE_DIGEST}"


async def test_a_pause_that_clears_the_cache_overrides_one_that_kept_it(
    trainer: TrainerHarness,
) -> None:
    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=True)
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await trainer.files.load(HOLDER, step(trainer, 5))

    assert trainer.harness.engine.calls[:2] == ["pause keep and keep", "pause keep"]
    assert "reset_caches" in trainer.harness.engine.calls


async def test_dropping_prefixes_clears_them_and_keeps_the_encoders_outputs(
    trainer: TrainerHarness,
) -> None:
    kept = trainer.harness.agent.kept

    def reads(*, has_media: bool) -> str | None:
        label = trainer.harness.engine.raw_label
        return kept.read_from(label, kept.begin(), found_cached=True, has_media=has_media)

    await trainer.seat.pause(HOLDER, PauseMode.KEEP, keep_cache=True)
    await trainer.files.load(HOLDER, step(trainer, 5))
    await trainer.seat.resume(HOLDER)
    trainer.harness.engine.running = 1
    assert not await trainer.seat.drop_prefixes(running=False)
    assert reads(has_media=False) == f"base@{BASE_DIGEST}"
    assert await trainer.seat.drop_prefixes(running=True)
    assert reads(has_media=False) is None
    assert reads(has_media=True) == f"base@{BASE_DIGEST}"


# --- sleeping -----------------------------------------------------------------------------------


async def test_a_worker_sleeps_under_its_pause_and_serves_once_all_parts_are_awake(
    trainer: TrainerHarness,
) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    assert trainer.harness.state.phase is Phase.PAUSED
    await trainer.seat.wake(HOLDER, ["weights"])
    assert trainer.harness.state.phase is Phase.PAUSED
    await trainer.seat.wake(HOLDER, ["kv_cache"])

    assert trainer.harness.state.phase is Phase.SERVING
    assert not trainer.harness.engine.paused


async def test_a_sleeping_engine_is_woken_for_a_load(trainer: TrainerHarness) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    await trainer.files.load(HOLDER, step(trainer, 5))

    calls = trainer.harness.engine.calls
    assert calls[calls.index("wake None") + 1] == "pause abort"  # in the mode of the sleep
    assert trainer.harness.engine.paused
    await trainer.seat.resume(HOLDER)


async def test_an_expired_pause_wakes_the_engine(trainer: TrainerHarness) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    trainer.harness.clock.now += 61
    await trainer.harness.agent.expire_lease()

    assert "wake None" in trainer.harness.engine.calls
    assert trainer.harness.state.phase is Phase.SERVING


async def test_nothing_is_loaded_into_an_engine_that_fails_to_wake(trainer: TrainerHarness) -> None:
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    trainer.harness.engine.wakes = False
    failure = await failing(trainer.files.load(HOLDER, step(trainer, 5)))

    assert not failure.touched
    assert not [call for call in trainer.harness.engine.calls if call.startswith("load")]
    assert trainer.harness.state.version == "base"


async def test_a_worker_fenced_while_asleep_is_woken_for_canary_prompts(
    trainer: TrainerHarness,
) -> None:
    harness = trainer.harness
    await trainer.seat.sleep(HOLDER, 1, PauseMode.ABORT)
    await harness.fence()
    await harness.run_prompts("x")

    calls = harness.engine.calls
    assert calls.index("wake None") < calls.index("sample x")


async def test_a_sleep_that_discards_weights_is_refused(trainer: TrainerHarness) -> None:
    refusal = await refused(trainer.seat.sleep(HOLDER, 2, PauseMode.ABORT))

    assert refusal.reason is Reason.NOT_AVAILABLE
    assert trainer.harness.state.phase is Phase.SERVING


# --- weights over a collective ------------------------------------------------------------------

ON = TransferRoom("own", has_accelerator=False)


async def test_without_a_transfer_backend_a_transfer_is_refused(trainer: TrainerHarness) -> None:
    refusal = await refused(trainer.collective.join_transfer(HOLDER, {}))

    assert refusal.reason is Reason.NOT_AVAILABLE
    assert "--weight-transfer-backend" in refusal.message
    assert trainer.transfers.state is None


async def test_without_a_gpu_a_transfer_is_refused(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=TransferRoom("nccl", has_accelerator=False))
    for call in (
        trainer.collective.join_transfer(HOLDER, {}),
        trainer.collective.begin_transfer(HOLDER),
    ):
        refusal = await refused(call)
        assert refusal.reason is Reason.NOT_AVAILABLE
        assert "GPU" in refusal.message
    assert serving.state.phase is Phase.SERVING


async def test_an_update_is_begun_received_and_finished(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.collective.join_transfer(HOLDER, {"world_size": 2})
    await trainer.collective.begin_transfer(HOLDER)
    assert serving.state.phase is Phase.LOADING
    state = trainer.transfers.state
    assert state is not None
    assert (state.connected, state.updating) == (True, True)
    await trainer.collective.receive(HOLDER, {"names": []})
    assert (await trainer.collective.end_transfer(HOLDER, "7")).version == "7"

    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")
    assert serving.state.source is None
    assert serving.engine.calls[-6:-1] == [
        "end_transfer",
        "checksum",
        "probe",
        "reset_caches",
        "set_version 7",
    ]
    await trainer.seat.resume(HOLDER)


async def test_a_trainer_starts_an_update_over_that_has_failed_at_another_worker(
    serving: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    collective = trainer.collective
    await collective.join_transfer(HOLDER, {"world_size": 2})
    await collective.begin_transfer(HOLDER)
    await collective.receive(HOLDER, {"names": ["of the update that failed"]})
    other = await refused(collective.begin_transfer(OTHER_HOLDER))
    await collective.begin_transfer(HOLDER)
    again = serving.engine.calls[-2:]
    await collective.receive(HOLDER, {"names": ["all"]})
    await collective.end_transfer(HOLDER, "7")

    assert other.reason is Reason.HELD_BY_ANOTHER
    assert again == ["cancel_transfer", "begin_transfer again"]
    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")
    assert serving.engine.weights == "received {'names': ['all']}"


async def test_a_repeated_end_of_an_update_is_answered_with_its_version(
    serving: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.update("7")
    done = list(serving.engine.calls)

    assert (await trainer.collective.end_transfer(HOLDER, "7")).version == "7"
    for label in ("8", None):
        refusal = await refused(trainer.collective.end_transfer(HOLDER, label))
        assert refusal.reason is Reason.WRONG_PHASE
    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")
    assert serving.engine.calls == done


@pytest.mark.parametrize(
    "meanwhile",
    ["files", "another version", "another group", "a failed begin", "an update that was dropped"],
)
async def test_a_repeated_end_is_refused_once_the_last_update_is_not_what_it_was(
    serving: WorkerHarness, meanwhile: str
) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    collective = trainer.collective
    await collective.join_transfer(HOLDER, {})
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await collective.begin_transfer(HOLDER)
    await collective.end_transfer(HOLDER, "7")
    if meanwhile == "files":
        await trainer.files.load(HOLDER, step(trainer, 8))
    elif meanwhile == "another version":
        await trainer.files.name_version(HOLDER, "8")
    elif meanwhile == "another group":
        await collective.join_transfer(HOLDER, {})
    elif meanwhile == "a failed begin":
        serving.engine.failures["is paused"] = [untouched()]
        await failing(collective.begin_transfer(HOLDER))
    else:
        await collective.begin_transfer(HOLDER)
        serving.clock.now += 61
        await serving.agent.expire_lease()

    for label in ("7", "8"):
        refusal = await refused(collective.end_transfer(HOLDER, label))
        assert refusal.reason is Reason.WRONG_PHASE


async def test_a_repeated_end_resumes_a_worker_only_from_the_pause_of_its_update(
    serving: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    collective = trainer.collective
    await collective.join_transfer(HOLDER, {})
    await collective.begin_transfer(HOLDER)
    serving.engine.failures["resume"] = [untouched()]
    await failing(collective.end_transfer(HOLDER, "7"))

    assert (await collective.end_transfer(HOLDER, "7")).version == "7"
    assert serving.state.phase is Phase.SERVING
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    assert (await collective.end_transfer(HOLDER, "7")).version == "7"
    assert serving.state.phase is Phase.PAUSED


async def test_an_end_that_is_repeated_during_the_resume_leaves_the_worker_serving(
    serving: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    collective = trainer.collective
    await collective.join_transfer(HOLDER, {})
    await collective.begin_transfer(HOLDER)
    resumes = serving.engine.gates["resume"] = asyncio.Event()
    first = asyncio.ensure_future(collective.end_transfer(HOLDER, "7"))
    await soon(lambda: serving.agent.ends_pause)
    second = asyncio.ensure_future(collective.end_transfer(HOLDER, "7"))
    await soon(lambda: serving.agent.lock._waiters)
    resumes.set()

    assert [weights.version for weights in await asyncio.gather(first, second)] == ["7", "7"]
    assert serving.state.phase is Phase.SERVING


async def test_a_trainer_that_paused_resumes_by_its_own_call(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.collective.join_transfer(HOLDER, {})
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await trainer.collective.begin_transfer(HOLDER)
    await trainer.collective.end_transfer(HOLDER, None)
    assert serving.state.phase is Phase.PAUSED
    await trainer.files.name_version(HOLDER, "7")
    await trainer.seat.resume(HOLDER)

    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")


async def test_a_group_must_be_joined_again_after_it_was_left(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.begin_update()
    busy = await refused(trainer.collective.leave_transfer(HOLDER))
    await trainer.collective.end_transfer(HOLDER, None)
    await trainer.collective.leave_transfer(HOLDER)

    assert busy.reason is Reason.WRONG_PHASE
    assert (await refused(trainer.collective.begin_transfer(HOLDER))).reason is Reason.WRONG_PHASE


async def received(harness: WorkerHarness, *sent: str, label: str | None = None) -> list[str]:
    """The labels of some updates of a trainer that has just joined."""
    trainer, labels = TrainerHarness.of(harness, room=ON), []
    await trainer.collective.join_transfer(HOLDER, {})
    for weights in sent:
        await trainer.collective.begin_transfer(HOLDER)
        await trainer.collective.receive(HOLDER, {"weights": weights})
        labels.append((await trainer.collective.end_transfer(HOLDER, label)).version)
    return labels


async def test_after_a_restart_a_checksum_still_tells_equal_weights_from_others(
    serving: WorkerHarness, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Numbers would start again: tokens of two sets of weights would carry one label."""
    before = await received(serving, "a", "b")
    async with start_worker(tmp_path_factory.mktemp("restarted")) as restarted:
        same, other = await received(restarted, "b", "c")

    assert same == before[1]
    assert other not in before


async def test_a_failed_checksum_counts_as_a_broken_load(serving: WorkerHarness) -> None:
    serving.engine.failures["checksum"] = [touched()]
    await failing(received(serving, "a"))

    assert serving.engine.label == "base"
    assert serving.agent.phase is Phase.JOINING


async def test_nothing_resumes_during_an_update(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.begin_update()

    assert (await refused(trainer.seat.resume(HOLDER))).reason is Reason.WRONG_PHASE
    refusal = await refused(trainer.collective.receive(OTHER_HOLDER, {}))
    assert refusal.reason is Reason.HELD_BY_ANOTHER


async def test_an_update_needs_a_group_and_a_begin(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)

    assert (await refused(trainer.collective.begin_transfer(HOLDER))).reason is Reason.WRONG_PHASE
    await trainer.collective.join_transfer(HOLDER, {})
    assert (await refused(trainer.collective.receive(HOLDER, {}))).reason is Reason.WRONG_PHASE
    refusal = await refused(trainer.collective.end_transfer(HOLDER, None))
    assert refusal.reason is Reason.WRONG_PHASE
    assert serving.state.phase is Phase.SERVING


async def test_an_unfinished_update_ends_with_the_last_good_weights(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.begin_update()
    serving.clock.now += 61
    await serving.agent.expire_lease()

    assert serving.engine.calls[-6:-4] == ["cancel_transfer", "pause abort"]
    state = serving.state
    assert (state.phase, state.version, state.admitted) == (Phase.JOINING, "base", False)
    assert state.load_failure is not None
    assert serving.engine.weights != "half"


async def test_a_fence_ends_a_running_update(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.begin_update()
    await serving.fence()

    assert (serving.state.phase, serving.state.version) == (Phase.JOINING, "base")
    assert (await refused(trainer.collective.receive(HOLDER, {}))).reason is Reason.WRONG_PHASE


async def test_an_update_behind_the_closed_latch_ends_after_its_lease(
    joining: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(joining, room=ON)
    await trainer.begin_update()
    joining.clock.advance(61)
    await joining.agent.expire_lease()
    assert (joining.state.phase, joining.state.version) == (Phase.JOINING, "base")

    await trainer.collective.begin_transfer(HOLDER)
    await trainer.collective.end_transfer(HOLDER, "7")
    assert (joining.state.phase, joining.state.pause) == (Phase.JOINING, None)
    await joining.admit("7")


async def test_a_failed_update_restores_the_last_good_weights(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.begin_update()
    serving.engine.failures["receive"] = [touched()]
    await failing(trainer.collective.receive(HOLDER, {}))

    assert (serving.state.phase, serving.state.version) == (Phase.JOINING, "base")
    assert serving.ended == []


async def test_weights_that_are_in_no_file_cannot_be_restored(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.update("7")
    await trainer.collective.begin_transfer(HOLDER)
    serving.engine.failures["receive"] = [touched()]
    await failing(trainer.collective.receive(HOLDER, {}))

    assert len(serving.ended) == 1
    assert "came over a collective" in serving.ended[0]


async def test_a_load_of_files_after_an_update_is_an_ordinary_load(serving: WorkerHarness) -> None:
    trainer = TrainerHarness.of(serving, room=ON)
    await trainer.update("7")
    await trainer.files.load(HOLDER, step(trainer, 8))
    await trainer.seat.resume(HOLDER)

    assert serving.state.version == "8"
    assert serving.state.source is not None
