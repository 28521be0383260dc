"""A trainer that drives a worker itself: the cache, sleeping, and weights over a collective."""

from __future__ import annotations

import re

import pytest
from tests.support.fake_engine import touched
from tests.support.tiny import BASE_DIGEST
from tests.unit.worker.conftest import OTHER, WHO, Bench, Trainer, a_bench, refused, step

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.protocol import PauseMode, Phase, Reason
from fleet_worker.runtime.transferring import TransferRoom

# --- the cache ----------------------------------------------------------------------------------


async def test_a_trainer_may_keep_the_cache_and_the_tokens_say_so(trainer: Trainer) -> None:
    bench = trainer.bench
    beginning = bench.agent.kept.begin()
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=True)
    pause = bench.state.pause
    assert pause is not None
    assert pause.cache_kept
    await trainer.driver.load(WHO, step(trainer, 5))
    await trainer.driver.resume(WHO)

    assert bench.engine.calls[0] == "pause keep and keep"
    assert "reset_caches" not in bench.engine.calls
    read = bench.agent.kept.read_from(bench.engine.raw_label, beginning, found_cached=False)
    assert read == f"base@{BASE_DIGEST}"


async def test_a_pause_that_clears_takes_the_cache_from_one_that_kept_it(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=True)
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    await trainer.driver.load(WHO, step(trainer, 5))

    assert trainer.bench.engine.calls[:2] == ["pause keep and keep", "pause keep"]
    assert "reset_caches" in trainer.bench.engine.calls


async def test_dropping_prefixes_cleans_what_was_kept(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP, keep_cache=True)
    await trainer.driver.load(WHO, step(trainer, 5))
    await trainer.driver.resume(WHO)
    trainer.bench.engine.running = 1
    assert not await trainer.driver.drop_prefixes(running=False)
    assert trainer.bench.agent.kept.oldest == f"base@{BASE_DIGEST}"
    assert await trainer.driver.drop_prefixes(running=True)
    assert trainer.bench.agent.kept.oldest is None


# --- sleeping -----------------------------------------------------------------------------------


async def test_a_worker_sleeps_behind_its_pause_and_serves_when_all_is_awake(
    trainer: Trainer,
) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    assert trainer.bench.state.phase is Phase.PAUSED
    await trainer.driver.wake(WHO, ["weights"])
    assert trainer.bench.state.phase is Phase.PAUSED
    await trainer.driver.wake(WHO, ["kv_cache"])

    assert trainer.bench.state.phase is Phase.SERVING
    assert not trainer.bench.engine.paused


async def test_a_sleeping_engine_is_woken_for_a_load_and_rests_again(trainer: Trainer) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    await trainer.driver.load(WHO, step(trainer, 5))

    calls = trainer.bench.engine.calls
    assert calls[calls.index("wake None") + 1] == "pause abort"  # as the sleep was asked for
    assert trainer.bench.engine.paused
    await trainer.driver.resume(WHO)


async def test_a_pause_that_runs_out_wakes_the_engine(trainer: Trainer) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    trainer.bench.clock.now += 61
    await trainer.bench.agent.expire_lease()

    assert "wake None" in trainer.bench.engine.calls
    assert trainer.bench.state.phase is Phase.SERVING


async def test_nothing_is_loaded_into_an_engine_that_does_not_wake(trainer: Trainer) -> None:
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    trainer.bench.engine.wakes = False
    with pytest.raises(EngineFailure) as failure:
        await trainer.driver.load(WHO, step(trainer, 5))

    assert not failure.value.touched
    assert not [call for call in trainer.bench.engine.calls if call.startswith("load")]
    assert trainer.bench.state.version == "base"


async def test_a_worker_that_was_fenced_asleep_is_woken_before_it_is_probed(
    trainer: Trainer,
) -> None:
    bench = trainer.bench
    await trainer.driver.sleep(WHO, 1, PauseMode.ABORT)
    await bench.fence()
    await bench.probe("x")

    calls = bench.engine.calls
    assert calls.index("wake None") < calls.index("sample x")


async def test_a_sleep_that_throws_weights_away_is_refused(trainer: Trainer) -> None:
    refusal = await refused(trainer.driver.sleep(WHO, 2, PauseMode.ABORT))

    assert refusal.reason is Reason.NOT_AVAILABLE
    assert trainer.bench.state.phase is Phase.SERVING


# --- weights over a collective ------------------------------------------------------------------

ON = TransferRoom("own", has_accelerator=False)


async def test_without_a_backend_the_answer_says_so(trainer: Trainer) -> None:
    refusal = await refused(trainer.driver.join_transfer(WHO, {}))

    assert refusal.reason is Reason.NOT_AVAILABLE
    assert "--weight-transfer-backend" in refusal.message
    assert trainer.transfers.state is None


async def test_without_a_gpu_the_answer_says_so(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=TransferRoom("nccl", has_accelerator=False))
    for call in (trainer.driver.join_transfer(WHO, {}), trainer.driver.begin_transfer(WHO)):
        refusal = await refused(call)
        assert refusal.reason is Reason.NOT_AVAILABLE
        assert "GPU" in refusal.message
    assert serving.state.phase is Phase.SERVING


async def test_an_update_is_begun_received_and_finished(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {"world_size": 2})
    await trainer.driver.begin_transfer(WHO)
    assert serving.state.phase is Phase.LOADING
    state = trainer.transfers.state
    assert state is not None
    assert (state.connected, state.updating) == (True, True)
    await trainer.driver.receive(WHO, {"names": []})
    assert await trainer.driver.end_transfer(WHO, "7") == "7"

    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")
    assert serving.state.source is None
    assert serving.engine.calls[-5:-1] == [
        "end_transfer",
        "probe",
        "reset_caches",
        "set_version 7",
    ]
    await trainer.driver.resume(WHO)


async def test_a_trainer_that_pauses_by_itself_resumes_by_itself(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    await trainer.driver.begin_transfer(WHO)
    await trainer.driver.end_transfer(WHO, None)
    assert serving.state.phase is Phase.PAUSED
    await trainer.driver.name_version(WHO, "7")
    await trainer.driver.resume(WHO)

    assert (serving.state.phase, serving.state.version) == (Phase.SERVING, "7")


async def test_a_group_that_was_left_must_be_joined_again(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    busy = await refused(trainer.driver.leave_transfer(WHO))
    await trainer.driver.end_transfer(WHO, None)
    await trainer.driver.leave_transfer(WHO)

    assert busy.reason is Reason.WRONG_PHASE
    assert (await refused(trainer.driver.begin_transfer(WHO))).reason is Reason.WRONG_PHASE


async def received(bench: Bench, *sent: str, label: str | None = None) -> list[str]:
    """The labels of some updates of a trainer that has just joined."""
    trainer, labels = Trainer.of(bench, room=ON), []
    await trainer.driver.join_transfer(WHO, {})
    for weights in sent:
        await trainer.driver.begin_transfer(WHO)
        await trainer.driver.receive(WHO, {"weights": weights})
        labels.append(await trainer.driver.end_transfer(WHO, label))
    return labels


async def test_updates_without_a_name_are_called_by_what_they_hold(serving: Bench) -> None:
    one, two, again = await received(serving, "a", "b", "a")

    assert re.fullmatch("update-[0-9a-f]{12}", one)
    assert one == again != two
    assert serving.engine.label == one


async def test_after_a_restart_the_same_weights_have_the_same_name_and_others_another(
    serving: Bench, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Numbers would begin anew: tokens of two sets of weights would carry one label."""
    before = await received(serving, "a", "b")
    async with a_bench(tmp_path_factory.mktemp("restarted")) as restarted:
        same, other = await received(restarted, "b", "c")

    assert same == before[1]
    assert other not in before


async def test_a_checksum_that_cannot_be_had_is_a_load_that_broke(serving: Bench) -> None:
    serving.engine.failures["checksum"] = [touched()]
    with pytest.raises(EngineFailure):
        await received(serving, "a")

    assert serving.engine.label == "base"
    assert serving.agent.phase is Phase.JOINING


async def test_nothing_is_resumed_in_the_middle_of_an_update(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)

    assert (await refused(trainer.driver.resume(WHO))).reason is Reason.WRONG_PHASE
    assert (await refused(trainer.driver.begin_transfer(WHO))).reason is Reason.WRONG_PHASE
    assert (await refused(trainer.driver.receive(OTHER, {}))).reason is Reason.HELD_BY_ANOTHER


async def test_updates_need_a_group_and_a_beginning(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)

    assert (await refused(trainer.driver.begin_transfer(WHO))).reason is Reason.WRONG_PHASE
    await trainer.driver.join_transfer(WHO, {})
    assert (await refused(trainer.driver.receive(WHO, {}))).reason is Reason.WRONG_PHASE
    assert (await refused(trainer.driver.end_transfer(WHO, None))).reason is Reason.WRONG_PHASE
    assert serving.state.phase is Phase.SERVING


async def test_an_update_that_nobody_finishes_ends_with_the_last_good_weights(
    serving: Bench,
) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    serving.clock.now += 61
    await serving.agent.expire_lease()

    assert serving.engine.calls[-6:-4] == ["abandon_transfer", "pause abort"]
    state = serving.state
    assert (state.phase, state.version, state.admitted) == (Phase.JOINING, "base", False)
    assert state.load_failure is not None
    assert serving.engine.weights != "half"


async def test_a_fence_ends_an_update_that_is_under_way(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    await serving.fence()

    assert (serving.state.phase, serving.state.version) == (Phase.JOINING, "base")
    assert (await refused(trainer.driver.receive(WHO, {}))).reason is Reason.WRONG_PHASE


async def test_an_update_behind_the_latch_ends_some_time_too(joining: Bench) -> None:
    trainer = Trainer.of(joining, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    joining.clock.advance(61)
    await joining.agent.expire_lease()
    assert (joining.state.phase, joining.state.version) == (Phase.JOINING, "base")

    await trainer.driver.begin_transfer(WHO)
    await trainer.driver.end_transfer(WHO, "7")
    assert (joining.state.phase, joining.state.pause) == (Phase.JOINING, None)
    await joining.admit("7")


async def test_a_failed_update_puts_the_last_good_weights_back(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    serving.engine.failures["receive"] = [touched()]
    with pytest.raises(EngineFailure):
        await trainer.driver.receive(WHO, {})

    assert (serving.state.phase, serving.state.version) == (Phase.JOINING, "base")
    assert serving.ended == []


async def test_weights_that_no_file_holds_cannot_be_put_back(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    await trainer.driver.end_transfer(WHO, "7")
    await trainer.driver.begin_transfer(WHO)
    serving.engine.failures["receive"] = [touched()]
    with pytest.raises(EngineFailure):
        await trainer.driver.receive(WHO, {})

    assert len(serving.ended) == 1
    assert "no file could put it back" in serving.ended[0]


async def test_a_label_over_a_collective_stands_for_one_update(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.load(WHO, step(trainer, 5))
    await trainer.driver.begin_transfer(WHO)
    refusal = await refused(trainer.driver.end_transfer(WHO, "5"))

    assert refusal.reason is Reason.VERSION_REUSED
    assert (serving.state.phase, serving.state.version) == (Phase.JOINING, "5")


async def test_a_file_after_a_collective_is_a_load_like_any_other(serving: Bench) -> None:
    trainer = Trainer.of(serving, room=ON)
    await trainer.driver.join_transfer(WHO, {})
    await trainer.driver.begin_transfer(WHO)
    await trainer.driver.end_transfer(WHO, "7")
    await trainer.driver.load(WHO, step(trainer, 8))
    await trainer.driver.resume(WHO)

    assert serving.state.version == "8"
    assert serving.state.source is not None
