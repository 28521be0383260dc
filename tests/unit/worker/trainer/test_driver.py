"""Trainers that drive a worker: folders, rights, files and labels."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import write_tiny
from tests.support.worker_harness import (
    HOLDER,
    OTHER_HOLDER,
    TrainerHarness,
    WorkerHarness,
    failing,
    refused,
    step,
)

from fleet_worker.protocol import (
    Management,
    PauseMode,
    Phase,
    Reason,
    Source,
    StageRequest,
    parent_of_step,
    step_of,
)
from fleet_worker.trainer.step_labels import label_of

# --- versions of folders ------------------------------------------------------------------------


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
def test_the_version_is_the_number_of_the_folder(path: str, version: str | None) -> None:
    assert step_of(path) == version


@pytest.mark.parametrize(
    ("path", "parent"),
    [
        ("/w/run-7/step_41", "/w/run-7"),
        ("/w/run-7/step_41/weights", "/w/run-7"),
        ("/step_41", "/"),
        ("/w/run-7", None),
        ("/w/weights", None),
    ],
)
def test_the_steps_of_a_run_are_in_one_folder(path: str, parent: str | None) -> None:
    assert parent_of_step(path) == parent


def test_a_rewritten_directory_has_a_version_made_from_its_files() -> None:
    one = label_of("/w/my refit!", {"model.safetensors": (10, 1)})
    other = label_of("/w/my refit!", {"model.safetensors": (10, 2)})

    assert one != other
    assert one.startswith("my-refit-")
    assert label_of("/elsewhere/my refit!", {"model.safetensors": (10, 1)}) == one


# --- rights -------------------------------------------------------------------------------------


async def test_under_operator_management_a_trainer_gets_the_way_to_publish(
    serving: WorkerHarness,
) -> None:
    driver = TrainerHarness.of(serving, management=Management.OPERATOR).driver
    calls = (
        lambda: driver.seat.pause(HOLDER, PauseMode.KEEP),
        lambda: driver.seat.resume(HOLDER),
        lambda: driver.files.load(HOLDER, "/anything"),
        lambda: driver.files.name_version(HOLDER, "1"),
        lambda: driver.collective.join_transfer(HOLDER, {}),
        lambda: driver.collective.begin_transfer(HOLDER),
        lambda: driver.collective.receive(HOLDER, {}),
        lambda: driver.collective.end_transfer(HOLDER, None),
        lambda: driver.files.put_adapter(HOLDER, "a", "/anything"),
        lambda: driver.files.remove_adapter(HOLDER, "a"),
        lambda: driver.seat.drop_prefixes(running=True),
        lambda: driver.seat.abort(None),
        lambda: driver.seat.sleep(HOLDER, 1, PauseMode.ABORT),
        lambda: driver.seat.wake(HOLDER, None),
    )
    for call in calls:
        refusal = await refused(call())
        assert refusal.reason is Reason.NOT_YOURS_TO_DRIVE
        assert "WeightVersion" in refusal.message
    assert serving.engine.calls == []


async def test_a_second_trainer_gets_the_holder_of_the_worker(trainer: TrainerHarness) -> None:
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    refusal = await refused(trainer.seat.pause(OTHER_HOLDER, PauseMode.KEEP))

    assert refusal.reason is Reason.HELD_BY_ANOTHER
    assert "10.0.0.1" in refusal.message
    assert refusal.retry_after_seconds == 60
    assert (await refused(trainer.seat.resume(OTHER_HOLDER))).reason is Reason.HELD_BY_ANOTHER
    path = step(trainer, 1)
    assert (await refused(trainer.files.load(OTHER_HOLDER, path))).reason is Reason.HELD_BY_ANOTHER


async def test_the_operator_counts_as_a_second_driver(trainer: TrainerHarness) -> None:
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)

    assert (await refused(trainer.harness.pause())).reason is Reason.HELD_BY_ANOTHER


# --- weights from files -------------------------------------------------------------------------


async def test_every_call_may_be_repeated(trainer: TrainerHarness) -> None:
    path = step(trainer, 5)
    for _ in range(2):
        await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    for _ in range(2):
        assert await trainer.files.load(HOLDER, path) == "5"
    for _ in range(2):
        await trainer.seat.resume(HOLDER)

    assert trainer.harness.engine.calls.count(f"load {path}") == 1


@pytest.mark.parametrize("spelling", ["{}/", "{}//", "/{}"])
async def test_a_directory_is_reported_with_single_slashes(
    trainer: TrainerHarness, spelling: str
) -> None:
    """No resource could have it otherwise, so that the operator could not send a worker to it."""
    path = step(trainer, 5)
    await trainer.files.load(HOLDER, spelling.format(path))

    assert trainer.harness.state.source == Source(path=path)


async def test_a_bad_directory_is_refused_without_an_effect(trainer: TrainerHarness) -> None:
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    path = Path(step(trainer, 5))
    os.truncate(path / "model.safetensors", 40)

    refusal = await refused(trainer.files.load(HOLDER, str(path)))
    assert refusal.reason is Reason.CHECKPOINT_TRUNCATED
    await trainer.seat.resume(HOLDER)
    assert trainer.harness.state.version == "base"


async def test_other_files_in_a_loaded_folder_are_refused_under_its_number(
    trainer: TrainerHarness,
) -> None:
    path = step(trainer, 5)
    await trainer.files.load(HOLDER, path)
    write_tiny(Path(path), 7.0)
    refusal = await refused(trainer.files.load(HOLDER, path))

    assert refusal.reason is Reason.VERSION_REUSED
    assert "another version" in refusal.message


async def test_a_folder_without_a_number_may_be_rewritten(trainer: TrainerHarness) -> None:
    path = trainer.harness.root / "refit"
    write_tiny(path, 1.0)
    first = await trainer.files.load(HOLDER, str(path))
    write_tiny(path, 2.0)
    second = await trainer.files.load(HOLDER, str(path))

    assert first != second
    assert trainer.harness.state.version == second


async def test_files_that_change_after_they_have_named_their_version_are_refused(
    trainer: TrainerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their bytes would be served under the version of the files before, which a peer has read."""
    agent, path = trainer.harness.agent, write_tiny(trainer.harness.root / "refit", 1.0)
    stage = agent.stage

    async def rewritten(request: StageRequest, *, by_directory: bool) -> str:
        write_tiny(path, 2.0)
        return await stage(request, by_directory=by_directory)

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(agent, "stage", rewritten)
        refusal = await refused(trainer.files.load(HOLDER, str(path)))
    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    assert (trainer.harness.state.version, trainer.harness.state.phase) == ("base", Phase.SERVING)

    assert (await trainer.files.load(HOLDER, str(path))).startswith("refit-")


async def test_a_load_that_broke_the_engine_is_neither_resumed_nor_repeated(
    trainer: TrainerHarness,
) -> None:
    path = step(trainer, 5)
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    trainer.harness.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    await failing(trainer.files.load(HOLDER, path))

    assert (await refused(trainer.seat.resume(HOLDER))).reason is Reason.BROKEN
    assert (await refused(trainer.files.load(HOLDER, path))).reason is Reason.BROKEN
    assert not trainer.harness.agent.is_open
    assert await trainer.files.load(HOLDER, step(trainer, 6)) == "6"


async def test_a_joining_worker_loads_the_update_and_waits_for_admission(
    joining: WorkerHarness,
) -> None:
    trainer = TrainerHarness.of(joining)
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    await trainer.files.load(HOLDER, step(trainer, 5))
    await trainer.seat.resume(HOLDER)

    assert (joining.state.phase, joining.state.version) == (Phase.JOINING, "5")
    assert not joining.agent.is_open
    await joining.admit("5")
    assert joining.agent.is_open


# --- labels -------------------------------------------------------------------------------------


async def test_a_label_can_be_set_only_between_load_and_resume(trainer: TrainerHarness) -> None:
    early = await refused(trainer.files.name_version(HOLDER, "41"))
    assert early.reason is Reason.VERSION_MISMATCH

    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    paused = await refused(trainer.files.name_version(HOLDER, "41"))
    assert paused.reason is Reason.VERSION_MISMATCH

    await trainer.files.load(HOLDER, step(trainer, 5))
    await trainer.files.name_version(HOLDER, "41")
    assert trainer.harness.state.version == trainer.harness.engine.label == "41"
    await trainer.seat.resume(HOLDER)
    late = await refused(trainer.files.name_version(HOLDER, "42"))
    assert late.reason is Reason.VERSION_MISMATCH
    await trainer.files.name_version(HOLDER, "41")


@pytest.mark.parametrize("call", ["resume", "wake"])
async def test_a_label_is_final_after_a_call_that_may_have_made_tokens(
    trainer: TrainerHarness, call: str
) -> None:
    seat, files = trainer.seat, trainer.files
    await seat.pause(HOLDER, PauseMode.ABORT)
    await files.load(HOLDER, step(trainer, 41))
    if call == "wake":
        await seat.sleep(HOLDER, 1, PauseMode.ABORT)
    trainer.harness.engine.failures[call] = [untouched()]
    await failing(seat.resume(HOLDER) if call == "resume" else seat.wake(HOLDER, None))
    refusal = await refused(files.name_version(HOLDER, "42"))

    assert refusal.reason is Reason.VERSION_MISMATCH
    assert trainer.harness.engine.label == "41"


async def test_a_label_of_other_weights_from_the_same_directory_is_refused(
    trainer: TrainerHarness,
) -> None:
    path = trainer.harness.root / "refit"
    for value, label in ((1.0, "5"), (2.0, "6")):
        await trainer.seat.pause(HOLDER, PauseMode.KEEP)
        await trainer.files.load(HOLDER, str(write_tiny(path, value)))
        if label == "6":
            refusal = await refused(trainer.files.name_version(HOLDER, "5"))
            assert refusal.reason is Reason.VERSION_REUSED
        await trainer.files.name_version(HOLDER, label)
        await trainer.seat.resume(HOLDER)

    assert trainer.harness.state.version == trainer.harness.engine.label == "6"


async def test_a_number_from_another_directory_belongs_to_another_run(
    trainer: TrainerHarness,
) -> None:
    labels = set()
    for run, value in (("a", 1.0), ("b", 2.0), ("a", 1.0)):
        path = write_tiny(trainer.harness.root / run / "step_1", value)
        assert await trainer.files.load(HOLDER, str(path)) == "1"
        labels.add(trainer.harness.engine.raw_label)
        state = trainer.harness.state
        assert (state.version, state.source) == ("1", Source(path=str(path)))
        assert trainer.harness.engine.weights == str(path)

    assert len(labels) == 2, "two runs' tokens would make one span"


async def test_a_refused_load_of_another_run_cannot_be_named_by_its_number(
    trainer: TrainerHarness,
) -> None:
    """Bytes that a refused load left staged are not used for a new load of the same number."""
    one = write_tiny(trainer.harness.root / "a" / "step_1", 1.0)
    two = write_tiny(trainer.harness.root / "b" / "step_1", 2.0)
    await trainer.files.load(HOLDER, str(one))
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)
    trainer.harness.engine.failures["load"] = [untouched()]
    await failing(trainer.files.load(HOLDER, str(two)))
    assert trainer.harness.state.staged is not None
    await trainer.files.load(HOLDER, str(one))

    assert trainer.harness.engine.weights == str(one)
    assert trainer.harness.state.source == Source(path=str(one))


async def test_a_version_that_broke_the_engine_may_come_from_another_run(
    trainer: TrainerHarness,
) -> None:
    one = write_tiny(trainer.harness.root / "a" / "step_1", 1.0)
    two = write_tiny(trainer.harness.root / "b" / "step_1", 2.0)
    trainer.harness.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    await failing(trainer.files.load(HOLDER, str(one)))
    assert (await refused(trainer.files.load(HOLDER, str(one)))).reason is Reason.BROKEN

    assert await trainer.files.load(HOLDER, str(two)) == "1"


async def test_a_label_given_with_the_load_is_the_label(trainer: TrainerHarness) -> None:
    await trainer.seat.pause(HOLDER, PauseMode.KEEP)

    assert await trainer.files.load(HOLDER, step(trainer, 5), "step_5") == "step_5"
    bad = await refused(trainer.files.load(HOLDER, step(trainer, 6), "no label!"))
    assert bad.reason is Reason.BAD_REQUEST
    assert "no label!" not in bad.message
