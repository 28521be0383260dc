"""A trainer that drives a worker itself: folders, rights, files and labels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import OTHER, WHO, Bench, Trainer, refused, step

from fleet_worker.core.refusals import EngineFailure
from fleet_worker.core.step_labels import label_of, step_of
from fleet_worker.protocol import Management, PauseMode, Phase, Reason, Source

# --- which version a folder stands for ----------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "version"),
    [
        ("/w/broadcasts/step_41", "41"),
        ("/w/step-41", "41"),
        ("/w/step_041/", "41"),
        ("/w/global_step_7", "7"),
        ("/w/checkpoints/step_3/weight", "3"),
        ("/w/step_3/optimizer", None),
        ("/w/refit", None),
        ("/weights", None),
        ("/", None),
    ],
)
def test_the_folder_tells_the_version(path: str, version: str | None) -> None:
    assert step_of(path) == version


def test_a_folder_that_is_written_again_and_again_has_a_mark_of_its_files() -> None:
    one = label_of("/w/my refit!", {"model.safetensors": (10, 1)})
    other = label_of("/w/my refit!", {"model.safetensors": (10, 2)})

    assert one != other
    assert one.startswith("my-refit-")
    assert label_of("/elsewhere/my refit!", {"model.safetensors": (10, 1)}) == one


# --- who may ------------------------------------------------------------------------------------


async def test_where_the_operator_brings_the_weights_a_trainer_is_told_where_to_publish(
    serving: Bench,
) -> None:
    driver = Trainer.of(serving, management=Management.OPERATOR).driver
    calls = (
        lambda: driver.pause(WHO, PauseMode.KEEP),
        lambda: driver.resume(WHO),
        lambda: driver.load(WHO, "/anything"),
        lambda: driver.name_version(WHO, "1"),
        lambda: driver.join_transfer(WHO, {}),
        lambda: driver.begin_transfer(WHO),
        lambda: driver.receive(WHO, {}),
        lambda: driver.end_transfer(WHO, None),
        lambda: driver.put_adapter(WHO, "a", "/anything"),
        lambda: driver.remove_adapter(WHO, "a"),
        lambda: driver.drop_prefixes(running=True),
        lambda: driver.abort(None),
        lambda: driver.sleep(WHO, 1, PauseMode.ABORT),
        lambda: driver.wake(WHO, None),
    )
    for call in calls:
        refusal = await refused(call())
        assert refusal.reason is Reason.NOT_YOURS_TO_DRIVE
        assert "WeightVersion" in refusal.message
    assert serving.engine.calls == []


async def test_a_second_trainer_is_told_who_holds_the_worker(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    refusal = await refused(trainer.driver.pause(OTHER, PauseMode.KEEP))

    assert refusal.reason is Reason.HELD_BY_ANOTHER
    assert "10.0.0.1" in refusal.message
    assert refusal.retry_after_seconds == 60
    assert (await refused(trainer.driver.resume(OTHER))).reason is Reason.HELD_BY_ANOTHER
    path = step(trainer, 1)
    assert (await refused(trainer.driver.load(OTHER, path))).reason is Reason.HELD_BY_ANOTHER


async def test_the_operator_is_a_second_driver_like_any_other(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)

    assert (await refused(trainer.bench.pause())).reason is Reason.HELD_BY_ANOTHER


async def test_a_trainers_pause_ends_by_itself(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    trainer.bench.clock.now += 61
    await trainer.bench.agent.expire_lease()

    assert trainer.bench.state.phase is Phase.SERVING


# --- weights from files -------------------------------------------------------------------------


async def test_pause_load_resume_is_a_swap(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    assert await trainer.driver.load(WHO, step(trainer, 5)) == "5"
    await trainer.driver.resume(WHO)

    state = trainer.bench.state
    assert (state.phase, state.version) == (Phase.SERVING, "5")
    assert trainer.bench.engine.label == "5"


async def test_every_call_may_come_twice(trainer: Trainer) -> None:
    path = step(trainer, 5)
    for _ in range(2):
        await trainer.driver.pause(WHO, PauseMode.KEEP)
    for _ in range(2):
        assert await trainer.driver.load(WHO, path) == "5"
    for _ in range(2):
        await trainer.driver.resume(WHO)

    assert trainer.bench.engine.calls.count(f"load {path}") == 1


async def test_a_load_without_a_pause_pauses_by_itself(trainer: Trainer) -> None:
    await trainer.driver.load(WHO, step(trainer, 5))

    assert trainer.bench.engine.calls[0] == "pause keep"
    assert trainer.bench.engine.calls[-1] == "resume"
    assert trainer.bench.state.phase is Phase.SERVING


@pytest.mark.parametrize("path", [None, ""])
async def test_no_directory_is_no_path(trainer: Trainer, path: str | None) -> None:
    assert (await refused(trainer.driver.load(WHO, path))).reason is Reason.BAD_REQUEST


async def test_a_bad_directory_changes_nothing(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    path = Path(step(trainer, 5))
    os.truncate(path / "model.safetensors", 40)

    assert (await refused(trainer.driver.load(WHO, str(path)))).reason is (
        Reason.CHECKPOINT_TRUNCATED
    )
    await trainer.driver.resume(WHO)
    assert trainer.bench.state.version == "base"


async def test_other_files_in_a_folder_that_was_loaded_are_no_version_of_that_number(
    trainer: Trainer,
) -> None:
    path = step(trainer, 5)
    await trainer.driver.load(WHO, path)
    write_tiny(Path(path), 7.0)
    refusal = await refused(trainer.driver.load(WHO, path))

    assert refusal.reason is Reason.VERSION_REUSED
    assert "another number" in refusal.message


async def test_a_folder_without_a_number_may_be_written_again(trainer: Trainer) -> None:
    path = trainer.bench.root / "refit"
    write_tiny(path, 1.0)
    first = await trainer.driver.load(WHO, str(path))
    write_tiny(path, 2.0)
    second = await trainer.driver.load(WHO, str(path))

    assert first != second
    assert trainer.bench.state.version == second


async def test_a_load_that_broke_the_engine_is_not_resumed_and_not_tried_again(
    trainer: Trainer,
) -> None:
    path = step(trainer, 5)
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    trainer.bench.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    with pytest.raises(EngineFailure):
        await trainer.driver.load(WHO, path)

    assert (await refused(trainer.driver.resume(WHO))).reason is Reason.BROKEN
    assert (await refused(trainer.driver.load(WHO, path))).reason is Reason.BROKEN
    assert not trainer.bench.agent.is_open
    assert await trainer.driver.load(WHO, step(trainer, 6)) == "6"


async def test_a_worker_that_joins_takes_the_update_and_waits_to_be_admitted(
    joining: Bench,
) -> None:
    trainer = Trainer.of(joining)
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    await trainer.driver.load(WHO, step(trainer, 5))
    await trainer.driver.resume(WHO)

    assert (joining.state.phase, joining.state.version) == (Phase.JOINING, "5")
    assert not joining.agent.is_open
    await joining.admit("5")
    assert joining.agent.is_open


# --- labels -------------------------------------------------------------------------------------


async def test_a_label_is_set_after_a_load_and_before_the_resume_only(trainer: Trainer) -> None:
    early = await refused(trainer.driver.name_version(WHO, "41"))
    assert early.reason is Reason.VERSION_MISMATCH

    await trainer.driver.pause(WHO, PauseMode.KEEP)
    paused = await refused(trainer.driver.name_version(WHO, "41"))
    assert paused.reason is Reason.VERSION_MISMATCH

    await trainer.driver.load(WHO, step(trainer, 5))
    await trainer.driver.name_version(WHO, "41")
    assert trainer.bench.state.version == trainer.bench.engine.label == "41"
    await trainer.driver.resume(WHO)
    late = await refused(trainer.driver.name_version(WHO, "42"))
    assert late.reason is Reason.VERSION_MISMATCH
    await trainer.driver.name_version(WHO, "41")


async def test_a_label_of_other_weights_from_the_same_directory_is_refused(
    trainer: Trainer,
) -> None:
    path = trainer.bench.root / "refit"
    for value, label in ((1.0, "5"), (2.0, "6")):
        await trainer.driver.pause(WHO, PauseMode.KEEP)
        await trainer.driver.load(WHO, str(write_tiny(path, value)))
        if label == "6":
            refusal = await refused(trainer.driver.name_version(WHO, "5"))
            assert refusal.reason is Reason.VERSION_REUSED
        await trainer.driver.name_version(WHO, label)
        await trainer.driver.resume(WHO)

    assert trainer.bench.state.version == trainer.bench.engine.label == "6"


async def test_a_number_that_comes_again_from_another_directory_is_another_runs(
    trainer: Trainer,
) -> None:
    labels = set()
    for run, value in (("a", 1.0), ("b", 2.0), ("a", 1.0)):
        path = write_tiny(trainer.bench.root / run / "step_1", value)
        assert await trainer.driver.load(WHO, str(path)) == "1"
        labels.add(trainer.bench.engine.raw_label)
        state = trainer.bench.state
        assert (state.version, state.source) == ("1", Source(path=str(path)))
        assert trainer.bench.engine.weights == str(path)

    assert len(labels) == 2, "two runs' tokens would make one span"


async def test_a_directory_that_was_written_anew_with_the_same_bytes_is_the_same_version(
    trainer: Trainer,
) -> None:
    path = step(trainer, 5)
    await trainer.driver.load(WHO, path)
    first = trainer.bench.state.digest
    step(trainer, 5)
    await trainer.driver.load(WHO, path)

    assert trainer.bench.state.digest == first


async def test_a_refused_load_of_another_run_does_not_come_in_by_its_number(
    trainer: Trainer,
) -> None:
    """What a refused load left staged is not what the trainer means by the same number."""
    one = write_tiny(trainer.bench.root / "a" / "step_1", 1.0)
    two = write_tiny(trainer.bench.root / "b" / "step_1", 2.0)
    await trainer.driver.load(WHO, str(one))
    await trainer.driver.pause(WHO, PauseMode.KEEP)
    trainer.bench.engine.failures["load"] = [untouched()]
    with pytest.raises(EngineFailure):
        await trainer.driver.load(WHO, str(two))
    assert trainer.bench.state.staged is not None
    await trainer.driver.load(WHO, str(one))

    assert trainer.bench.engine.weights == str(one)
    assert trainer.bench.state.source == Source(path=str(one))


async def test_a_version_that_broke_the_engine_may_come_from_another_run(
    trainer: Trainer,
) -> None:
    one = write_tiny(trainer.bench.root / "a" / "step_1", 1.0)
    two = write_tiny(trainer.bench.root / "b" / "step_1", 2.0)
    trainer.bench.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    with pytest.raises(EngineFailure):
        await trainer.driver.load(WHO, str(one))
    assert (await refused(trainer.driver.load(WHO, str(one)))).reason is Reason.BROKEN

    assert await trainer.driver.load(WHO, str(two)) == "1"


async def test_a_label_that_is_named_with_the_load_is_the_label(trainer: Trainer) -> None:
    await trainer.driver.pause(WHO, PauseMode.KEEP)

    assert await trainer.driver.load(WHO, step(trainer, 5), "step_5") == "step_5"
    bad = await refused(trainer.driver.load(WHO, step(trainer, 6), "no label!"))
    assert bad.reason is Reason.BAD_REQUEST
    assert "no label!" not in bad.message
