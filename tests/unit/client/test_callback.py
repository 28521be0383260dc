"""The callback `publish_every` in one process, over a fake API server."""

from __future__ import annotations

import errno
import itertools
import logging
import os
import pickle
import re
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support import fake_modules
from tests.support.deltas import metadata
from tests.support.fake_objects import FakeObjects, condition

from fleet_worker.process.manifest import digest_in
from rlfleet import (
    AsyncWeights,
    NotFound,
    Refused,
    RlfleetError,
    Superseded,
    TimedOut,
    Unavailable,
    Weights,
    checkpoints,
    make_readable,
    publish_every,
    run_of,
    training,
)
from rlfleet.deltas.sources import FromStateDict
from rlfleet.deltas.writing import write_full
from rlfleet.rollout import ABSENT_SECONDS


class FakeCallback:
    """The base class of callbacks in transformers."""


@pytest.fixture(autouse=True)
def transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_modules.install(monkeypatch, {"transformers": {"TrainerCallback": FakeCallback}})


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def save(folder: str) -> None:
    """Write files as safetensors does: for their user alone."""
    (Path(folder) / "parts").mkdir(parents=True)
    for name in ("model.safetensors", "parts/one.safetensors"):
        file = Path(folder) / name
        file.write_bytes(b"weights")
        file.chmod(0o600)


def weights(objects: FakeObjects) -> Weights:
    return Weights("policy", objects=objects)


def steps(callback: Any, *numbers: int, main: bool = True) -> list[str]:
    """Play optimizer steps. Returns: where the model was written to."""
    written: list[str] = []

    def write(folder: str) -> None:
        written.append(folder)
        save(folder)

    for number in numbers:
        state = SimpleNamespace(global_step=number, is_world_process_zero=main)
        callback.on_step_end(None, state, None, model=SimpleNamespace(save_pretrained=write))
    return written


def end(callback: Any, *, main: bool = True) -> None:
    """The training ends."""
    callback.on_train_end(None, SimpleNamespace(is_world_process_zero=main), None, model=None)


def published(objects: FakeObjects) -> list[Any]:
    return [
        body["spec"] for request, body in objects.requests if request.startswith("patch") and body
    ]


def test_weights_of_an_event_loop_are_refused_before_the_training(tmp_path):
    """The first publish ended the training: a coroutine has no outcome."""
    given: Any = AsyncWeights("policy", objects=FakeObjects())

    with pytest.raises(TypeError, match=r"weights .*AsyncWeights.* must be rlfleet.Weights"):
        publish_every(1, given, tmp_path)


def test_every_n_steps_the_model_is_saved_and_then_published(tmp_path):
    objects, reports = FakeObjects(), []
    callback = publish_every(
        20,
        weights(objects),
        tmp_path,
        worker_directory="/shared/",
        run_id="r",
        wait=True,
        report=reports.append,
    )

    assert isinstance(callback, FakeCallback)
    assert steps(callback, 19, 20, 21, 60) == [f"{tmp_path}/step_20", f"{tmp_path}/step_60"]
    assert [(s["version"], s["source"]["path"], s["runID"]) for s in published(objects)] == [
        ("20", "/shared/step_20", "r"),
        ("60", "/shared/step_60", "r"),
    ]
    assert [r["rlfleet/applied_version"] for r in reports] == [20, 60]
    assert {r["rlfleet/lag_versions"] for r in reports} == {0}


def test_one_process_publishes_and_all_save_a_sharded_model(tmp_path):
    objects, written = FakeObjects(), []

    assert steps(publish_every(1, weights(objects), tmp_path), 1, main=False) == []
    assert (
        steps(publish_every(1, weights(objects), tmp_path, save=written.append), 1, main=False)
        == []
    )
    assert published(objects) == []
    assert written == [f"{tmp_path}/step_1"]


@pytest.mark.parametrize("with_save", [False, True])
def test_a_restarted_training_does_not_overwrite_a_published_version(tmp_path, *, with_save):
    objects, written = FakeObjects(), []
    (tmp_path / "step_10").mkdir()
    (tmp_path / "step_10" / "model.safetensors").write_bytes(b"served")

    def write(folder: str) -> None:
        written.append(folder)
        save(folder)

    callback = publish_every(10, weights(objects), tmp_path, save=write if with_save else None)

    with pytest.raises(FileExistsError, match=r"model\.safetensors.*another directory"):
        steps(callback, 10)
    assert written == published(objects) == []
    assert steps(callback, 20) == ([] if with_save else [f"{tmp_path}/step_20"])


def test_steps_start_at_one(tmp_path):
    with pytest.raises(ValueError, match="at least 1"):
        publish_every(0, weights(FakeObjects()), tmp_path)


# --- outcomes -------------------------------------------------------------------------------------


def test_with_wait_a_refusal_ends_the_training(tmp_path):
    objects = FakeObjects(obeys=False)
    objects.script.append(lambda: objects.stall("CheckpointNotFinite"))

    with pytest.raises(Refused, match="CheckpointNotFinite"):
        steps(publish_every(1, weights(objects), tmp_path, wait=True), 50)


def test_without_wait_training_continues_and_a_refusal_ends_it_before_the_next_version(tmp_path):
    objects = FakeObjects(obeys=False)
    callback, before = publish_every(10, weights(objects), tmp_path), objects.now

    steps(callback, 10)
    assert objects.now == before
    steps(callback, 20)  # replaces 10, whose rollout has not begun
    assert objects.now == before
    objects.stall("CheckpointNotFinite")

    with pytest.raises(Refused, match="version 20 is refused, CheckpointNotFinite"):
        steps(callback, 30)
    assert not (tmp_path / "step_30").exists()
    assert [spec["version"] for spec in published(objects)] == ["10", "20"]


def test_another_writer_ends_the_training_before_its_next_version(tmp_path):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path)
    steps(callback, 10)
    objects.desire(version="99")

    with pytest.raises(Superseded):
        steps(callback, 20)


def absent(objects: FakeObjects, reason: str = "WaitingForCheckpoint") -> None:
    generation = objects.weights["metadata"]["generation"]
    objects.look("Pending", condition("Ready", reason, generation, status="False"))


def test_files_that_no_worker_finds_end_the_training_after_a_short_wait(tmp_path):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path)
    steps(callback, 10)
    absent(objects)
    before = objects.now

    with pytest.raises(Refused, match="WaitingForCheckpoint"):
        steps(callback, 20)
    assert objects.now - before == pytest.approx(ABSENT_SECONDS)


def test_files_that_a_worker_finds_at_its_next_look_end_nothing(tmp_path):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path)
    steps(callback, 10)
    absent(objects)
    objects.script.append(objects.apply)

    assert steps(callback, 20) == [f"{tmp_path}/step_20"]


@pytest.mark.parametrize("reason", ["NoWorkers", "Suspended"])
def test_a_fleet_that_rests_ends_no_training_that_does_not_wait(tmp_path, reason, caplog):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path)
    steps(callback, 10)
    absent(objects, reason)

    steps(callback, 20)
    absent(objects, reason)
    end(callback)
    assert reason in caplog.text


def test_an_api_server_that_is_away_for_a_moment_ends_nothing(tmp_path):
    objects = FakeObjects()
    callback = publish_every(10, weights(objects), tmp_path)
    steps(callback, 10)
    objects.failures.append(Unavailable("away"))

    assert steps(callback, 20) == [f"{tmp_path}/step_20"]


def test_the_last_version_is_waited_for_when_training_ends(tmp_path):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path)
    end(callback)  # without a version
    steps(callback, 10)
    objects.script.append(lambda: objects.stall("CheckpointNotFinite"))

    with pytest.raises(Refused, match="CheckpointNotFinite"):
        end(callback)


def test_a_slow_rollout_is_a_warning_at_the_end_of_a_training(tmp_path, caplog):
    objects = FakeObjects(obeys=False)
    callback = publish_every(10, weights(objects), tmp_path, timeout_seconds=5)
    steps(callback, 10)

    with caplog.at_level(logging.WARNING):
        end(callback)
    assert "version 10 of policy is not applied yet" in caplog.text
    with pytest.raises(TimedOut):
        steps(publish_every(20, weights(objects), tmp_path, wait=True, timeout_seconds=5), 20)


def test_no_wait_is_longer_than_a_watchdog_bears(tmp_path, monkeypatch):
    objects = FakeObjects(obeys=False)
    parts: list[float] = []
    clock = SimpleNamespace(monotonic=lambda: objects.now)
    real = training.together

    def together(work: Any) -> Any:
        before = objects.now
        result = real(work)
        parts.append(objects.now - before)
        return result

    monkeypatch.setattr(training, "time", clock)
    monkeypatch.setattr(training, "together", together)
    callback = publish_every(10, weights(objects), tmp_path, wait=True, timeout_seconds=1000)

    with pytest.raises(TimedOut):
        steps(callback, 10)
    assert objects.now == pytest.approx(2000)
    assert max(parts) <= training.LONGEST_SECONDS


# --- rights ---------------------------------------------------------------------------------------


def rights(folder: Path) -> dict[str, str]:
    found = [folder, *folder.rglob("*")]
    return {path.name: oct(stat.S_IMODE(path.lstat().st_mode)) for path in found}


def test_workers_of_another_user_can_read_what_was_written(tmp_path, strict_umask):
    callback = publish_every(1, weights(FakeObjects()), tmp_path / "out" / "run-7")
    steps(callback, 1)

    assert rights(tmp_path / "out") == {
        "out": "0o755",
        "run-7": "0o755",
        ".rlfleet-run": "0o644",
        "step_1": "0o755",
        "parts": "0o755",
        "model.safetensors": "0o644",
        "one.safetensors": "0o644",
    }


def test_the_mode_may_be_for_a_group_or_left_alone(tmp_path, strict_umask):
    for mode, folder, file in ((0o440, "0o750", "0o640"), (None, "0o700", "0o600")):
        directory = tmp_path / str(mode)
        steps(publish_every(1, weights(FakeObjects()), directory, mode=mode), 1)
        found = rights(directory)
        assert (found["step_1"], found[directory.name]) == (folder, folder)
        assert (found["model.safetensors"], found[".rlfleet-run"]) == (file, file)


def test_only_what_was_written_gets_rights(tmp_path, strict_umask):
    outside, directory = tmp_path / "outside", tmp_path / "shared"
    for folder in (outside, directory, directory / "step_1"):
        folder.mkdir()
    (outside / "secret").write_text("secret")
    (directory / "notes").write_text("notes")
    (directory / "step_1" / ".snapshot").mkdir()
    (directory / "step_1" / "link").symlink_to(outside / "secret")

    make_readable(directory / "step_1")

    assert rights(outside) == {"outside": "0o700", "secret": "0o600"}
    found = rights(directory)
    assert (found["shared"], found["notes"], found[".snapshot"]) == ("0o700", "0o600", "0o700")


def test_rights_are_added_and_never_taken(tmp_path):
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    file.chmod(0o662)

    make_readable(tmp_path)

    assert stat.S_IMODE(file.stat().st_mode) == 0o666


# --- runs -----------------------------------------------------------------------------------------

RUN_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


@pytest.mark.parametrize("wait", [True, False])
def test_a_process_that_cannot_meet_the_main_one_does_not_wait_for_it(tmp_path, *, wait):
    """As under a launcher without torch.distributed."""
    callback = publish_every(1, weights(FakeObjects()), tmp_path, wait=wait)

    def train() -> None:
        steps(callback, 1, main=False)
        end(callback, main=False)

    process = threading.Thread(target=train, daemon=True)
    process.start()
    process.join(10)

    assert not process.is_alive()


def test_each_version_belongs_to_the_run_of_its_directory(tmp_path):
    objects = FakeObjects()
    directory = tmp_path / "run-7"
    steps(publish_every(1, weights(objects), directory), 1, 2)
    steps(publish_every(1, weights(objects), directory), 3)  # a job that resumes
    steps(publish_every(1, weights(objects), tmp_path / "again"), 1)  # one that starts over

    *resumed, another = [spec["runID"] for spec in published(objects)]
    assert set(resumed) == {run_of(directory)}
    assert resumed[0].startswith("run-7-")
    assert another == run_of(tmp_path / "again") != resumed[0]


@pytest.mark.parametrize(
    "name", ["run-7", "Qwen3 8B, sft", "-.-", "_x_", "длинный", "a" * 200, "a" * 39 + "-b"]
)
def test_a_run_has_a_name_that_the_api_server_takes(tmp_path, name):
    run = run_of(tmp_path / name)

    assert RUN_ID.fullmatch(run)
    assert len(run) <= 63
    assert run_of(f"{tmp_path}/{name}") == run


def test_a_directory_that_was_emptied_holds_another_run(tmp_path):
    first = run_of(tmp_path)
    (tmp_path / ".rlfleet-run").unlink()

    assert run_of(tmp_path) != first


def test_processes_that_name_a_run_at_the_same_time_agree(tmp_path, monkeypatch):
    found = []

    def slowly(folder: str) -> str:
        monkeypatch.setattr(checkpoints, "_named_after", lambda _: "fast")
        found.append(run_of(tmp_path))
        return f"slow-{folder}"

    monkeypatch.setattr(checkpoints, "_named_after", slowly)
    found.append(run_of(tmp_path))

    assert found == ["fast", "fast"]
    assert [each.name for each in tmp_path.iterdir()] == [".rlfleet-run"]


def test_a_run_has_a_name_on_a_file_system_without_hard_links(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    assert run_of(tmp_path) == run_of(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [".rlfleet-run"]


@pytest.mark.parametrize("text", ["", "two words", "-x", "x" * 64])
def test_a_file_without_a_name_of_a_run_is_an_error(tmp_path, text):
    (tmp_path / ".rlfleet-run").write_text(text)

    with pytest.raises(ValueError, match=r"\.rlfleet-run has no name of a run"):
        run_of(tmp_path)


# --- processes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        RlfleetError("words"),
        Refused("43", "CheckpointTruncated", "cut"),
        Superseded("43", "44"),
        TimedOut("43", "late"),
        NotFound("none"),
        Unavailable("away", retry_after_seconds=7),
    ],
)
def test_an_error_can_be_sent_to_another_process(error):
    sent = pickle.loads(pickle.dumps(error))  # noqa: S301 - made here

    assert (type(sent), str(sent), sent.args) == (type(error), str(error), error.args)
    assert vars(sent) == vars(error)


def write_checkpoint(folder: str, number: int) -> None:
    """Save a full checkpoint of one tensor, as `save_pretrained` does."""
    tensor = np.ones(1000, np.float32)
    tensor[number] = 2
    start = Path(folder) / "start"
    start.mkdir()
    (start / "config.json").write_text("{}")
    write_full(FromStateDict({"a": tensor}, start), Path(folder), None, lambda _: None)
    (start / "config.json").unlink()
    start.rmdir()


@pytest.mark.parametrize("saved_by", ["model", "trainer"])
def test_with_delta_a_step_is_written_as_what_differs_from_the_one_before(
    tmp_path, monkeypatch, saved_by
):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    objects, saved = FakeObjects(), itertools.count(1)

    def write(folder: str) -> None:
        assert Path(folder).parent == scratch
        write_checkpoint(folder, next(saved))

    more = {"save": write} if saved_by == "trainer" else {}
    callback = publish_every(
        1, weights(objects), tmp_path / "run", worker_directory="/shared", delta=True, **more
    )
    for number in (1, 2):
        state = SimpleNamespace(global_step=number, is_world_process_zero=True)
        model = SimpleNamespace(save_pretrained=write if saved_by == "model" else None)
        callback.on_step_end(None, state, None, model=model)

    assert metadata(tmp_path / "run/step_1") == {}
    assert metadata(tmp_path / "run/step_2")["base_version"] == "1"
    assert [(s["source"]["path"], s["digest"]) for s in published(objects)] == [
        ("/shared/step_1", digest_in(str(tmp_path / "run/step_1"))),
        ("/shared/step_2", metadata(tmp_path / "run/step_2")["result_digest"]),
    ]
    assert list(scratch.iterdir()) == []


def test_a_save_that_fails_leaves_no_copy_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    callback = publish_every(1, weights(FakeObjects()), tmp_path / "run", save=fail, delta=True)
    with pytest.raises(OSError, match="No space left"):
        steps(callback, 1)

    assert [f.name for f in tmp_path.iterdir()] == ["run"]
