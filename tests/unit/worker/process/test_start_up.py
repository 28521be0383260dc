"""Checks before the engine starts."""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.present import present
from tests.support.refusals import refusal_from
from tests.support.slime_deltas import write_delta
from tests.support.tiny import CONFIG, TinyInspector, write_tiny
from tests.support.worker_commands import served

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.inspection import ModelInspector
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.engine.start_names import DIGESTS_FILE
from fleet_worker.errors import Refusal
from fleet_worker.process import handover, start_up, start_weights
from fleet_worker.process.settings import Settings
from fleet_worker.protocol import Reason
from free_ports import free_port
from rlfleet_resources.weight_files import INDEX_FILE


@pytest.fixture
def prepare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., start_up.Prepared]:
    """`prepare` without an engine: for a tiny model, with what a test changes."""
    token = tmp_path / "token"
    token.write_text("secret")
    model = write_tiny(tmp_path / "model", 0.0)

    def rules(_: Settings, model: start_up.Model, roots: Roots, __: object) -> StageRules:
        inspector = TinyInspector()
        reference = Reference.of(model.checkpoint, inspector)
        return StageRules(roots, reference, inspector, 0)

    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(start_up, "_rules", rules)
    monkeypatch.setattr(start_up, "check_engine", lambda: "0.32.0")

    def run(**changes: Any) -> start_up.Prepared:
        environment = {"RLFLEET_ADMIN_TOKEN_FILE": str(token)} | changes.pop("environment", {})
        usual: dict[str, Any] = {
            "model": str(model),
            "host": "127.0.0.1",
            "port": 0,
            "admin_port": 0,
            "weights_root": [str(tmp_path / "root")],
            "staging_memory_bytes": 0,
            "silence_seconds": 1.0,
            "load_seconds": 1.0,
            "driver_lease_seconds": 60.0,
        }
        arguments = served(**usual | changes)
        prepared = start_up.prepare(Settings.of(arguments, environment), started=1.0)
        prepared.handover.admin_socket.close()
        return prepared

    return run


Prepare = Callable[..., start_up.Prepared]


def started_on(version: str, path: Path | str) -> dict[str, str]:
    return {"RLFLEET_START_VERSION": version, "RLFLEET_START_PATH": str(path)}


def weights_of(prepared: start_up.Prepared) -> bytes:
    """Content of the one file of weights that vLLM finds."""
    return (Path(prepared.directory) / damage.WEIGHTS).read_bytes()


def test_a_start_reads_by_itself_and_a_stage_in_a_stager(prepare: Prepare) -> None:
    handover = prepare().handover
    inspector = handover.rules.inspector

    assert handover.stagers._ready == [], "the start has needed none"
    assert isinstance(inspector, ModelInspector)
    reading = inspector._passes({})
    assert isinstance(reading, StagerPass)
    assert reading._stagers is handover.stagers


def test_without_a_start_version_the_models_weights_are_loaded(
    prepare: Prepare, tmp_path: Path
) -> None:
    prepared = prepare()

    assert weights_of(prepared) == (tmp_path / "model" / damage.WEIGHTS).read_bytes()
    assert prepared.handover.initial.version == "base"
    assert prepared.handover.worker == socket.gethostname()


def test_a_version_whose_tensors_a_load_casts_is_loaded_after_the_start(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The version is not refused, and its bytes are not read before."""
    path = write_tiny(tmp_path / "root" / "7", 7.0, in_float32=True)
    opened: list[Checkpoint] = []

    def open_(*given: Any) -> Checkpoint:
        opened.append(open_checkpoint(*given))
        return opened[-1]

    monkeypatch.setattr(start_weights, "open_checkpoint", open_)
    prepared = prepare(environment=started_on("7", path))

    assert prepared.handover.initial.version == "base"
    assert prepared.handover.start_failure is None
    assert weights_of(prepared) == (tmp_path / "model" / damage.WEIGHTS).read_bytes()
    _, version = opened
    assert version.path == str(path)
    assert version.files == (), "they are closed"
    assert version.zero_blocks is None, "they were not read"


def test_a_delta_is_loaded_after_the_start(prepare: Prepare, tmp_path: Path) -> None:
    full = write_tiny(tmp_path / "full", 7.0)
    path = tmp_path / "root" / "step_1"
    write_delta(tmp_path / "model", full, path, version=1, base_version=0)
    prepared = prepare(environment=started_on("1", path))

    assert prepared.handover.initial.version == "base"
    assert prepared.handover.start_failure is None
    assert weights_of(prepared) == (tmp_path / "model" / damage.WEIGHTS).read_bytes()
    first = present(prepared.handover.rules.first_base)
    assert (first.version, first.digest) == ("base", prepared.handover.initial.digest)


def test_without_a_metrics_port_no_socket_is_bound(prepare: Prepare) -> None:
    assert prepare().handover.metrics_socket is None


def test_the_metrics_port_is_bound_before_the_engine_starts(prepare: Prepare) -> None:
    found = present(prepare(metrics_host="127.0.0.2", metrics_port=0).handover.metrics_socket)

    assert found.getsockname()[0] == "127.0.0.2"  # open: the plugin serves on it
    found.close()


@pytest.mark.parametrize("name", ["admin", "metrics"])
def test_a_port_in_use_fails_the_start_without_a_socket_left_open(
    prepare: Prepare, name: str
) -> None:
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"the {name} port 127.0.0.1:{port} cannot be bound"):
            prepare(**{"metrics_port": 0, f"{name}_port": port})

    assert not left_open(before)


def test_a_worker_has_the_name_that_its_environment_gives(prepare: Prepare) -> None:
    assert prepare(environment={"RLFLEET_WORKER_NAME": "policy-0"}).handover.worker == "policy-0"


@pytest.mark.parametrize(
    ("version", "folder", "config", "reason"),
    [
        pytest.param("7", "elsewhere", {}, Reason.SOURCE_OUTSIDE_ROOTS, id="outside of the roots"),
        pytest.param("7", "root/7", {"hidden_size": 8}, Reason.CHECKPOINT_MISMATCH, id="misfit"),
        pytest.param("no label", "root/7", {}, Reason.BAD_REQUEST, id="no label"),
        pytest.param("7", "absent", {}, Reason.SOURCE_ABSENT, id="absent"),
    ],
)
def test_an_unusable_start_version_is_not_loaded_and_the_reason_is_logged(
    prepare: Prepare,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    version: str,
    folder: str,
    config: dict[str, Any],
    reason: Reason,
) -> None:
    path = tmp_path / "root" / "absent"
    if folder != "absent":
        path = write_tiny(tmp_path / folder, **config)
    prepared = prepare(environment=started_on(version, path))

    open_files = {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}
    assert not [each for each in open_files if each.startswith(str(path))]
    assert prepared.handover.initial.version == "base"
    assert weights_of(prepared) == (tmp_path / "model" / damage.WEIGHTS).read_bytes()
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert reason in caplog.text


def test_vllm_starts_on_the_weights_of_a_version_and_the_other_files_of_the_model(
    prepare: Prepare, tmp_path: Path
) -> None:
    path, model = write_tiny(tmp_path / "root" / "7", 7.0), tmp_path / "model"
    write_ema(path)
    for directory in (path, model):
        (directory / "preprocessor_config.json").write_text(str(directory))
    (model / "code").mkdir()
    (path / "chat_template.jinja").touch()
    prepared = prepare(environment=started_on("7", path))

    assert prepared.handover.start_failure is None
    assert prepared.handover.initial.source.path == str(path)
    started = Path(prepared.directory)
    assert {p.name for p in started.iterdir()} == {p.name for p in model.iterdir()} | {DIGESTS_FILE}
    assert (started / damage.WEIGHTS).samefile(path / damage.WEIGHTS)
    for name in ("preprocessor_config.json", "code"):
        assert (started / name).samefile(model / name)
    assert json.loads((started / "config.json").read_text()) == CONFIG


def test_the_digests_of_the_tensors_lie_next_to_the_weights_of_a_start(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "root" / "7", 7.0)
    prepared = prepare(environment=started_on("7", path))

    checkpoint = prepared.handover.initial.checkpoint
    written = json.loads((Path(prepared.directory) / DIGESTS_FILE).read_text())
    assert written == checkpoint.tensor_digests()
    assert set(checkpoint.tensor_digests()) == {"embed.weight", "head.weight"}


def test_each_start_has_a_directory_of_the_same_name_with_its_own_files(
    prepare: Prepare, tmp_path: Path
) -> None:
    port = free_port()  # its number is in the name
    first = prepare(admin_port=port).directory
    (Path(first) / "left-over.safetensors").touch()
    path = write_tiny(tmp_path / "root" / "7", 7.0)
    second = prepare(admin_port=port, environment=started_on("7", path))

    assert second.directory == first
    assert weights_of(second) == (path / damage.WEIGHTS).read_bytes()
    assert not (Path(first) / "left-over.safetensors").exists()
    assert Path(first).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("what", ["version", "model"])
def test_vllm_reads_the_digested_bytes_though_another_directory_takes_the_place(
    prepare: Prepare, tmp_path: Path, what: str
) -> None:
    path = write_tiny(tmp_path / "root" / "7", 7.0) if what == "version" else tmp_path / "model"
    digested = (path / damage.WEIGHTS).read_bytes()
    (path / "tokenizer.json").write_text("the model's")
    prepared = prepare(environment=started_on("7", path) if what == "version" else {})
    other = write_tiny(tmp_path / "root" / "other", 8.0, hidden_size=8)
    (other / "tokenizer.json").write_text("another")
    path.rename(tmp_path / "root" / "away")
    other.rename(path)

    assert weights_of(prepared) == digested
    started = Path(prepared.directory)
    assert json.loads((started / "config.json").read_text()) == CONFIG
    if what == "model":
        assert (started / "tokenizer.json").read_text() == "the model's"


def test_a_file_of_the_model_that_cannot_be_opened_does_not_prevent_the_start(
    prepare: Prepare, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "model" / "pipe")
    (tmp_path / "model" / "nowhere").symlink_to(tmp_path / "nothing")
    started = Path(prepare().directory)

    assert (started / "pipe").readlink() == tmp_path / "model" / "pipe"
    assert (started / "nowhere").readlink() == tmp_path / "model" / "nowhere"


@pytest.mark.parametrize("has_index", [True, False])
def test_vllm_starts_on_several_files_of_any_names(
    prepare: Prepare, tmp_path: Path, has_index: bool
) -> None:
    """`model.safetensors` as one of the files of an index would hide the others from transformers."""
    path = write_tiny(tmp_path / "root" / "7")
    tensors = damage.read_tensors(path / damage.WEIGHTS)
    names = {"embed.weight": damage.WEIGHTS, "head.weight": "head.safetensors"}
    if has_index:
        (path / INDEX_FILE).write_text(json.dumps({"weight_map": names}))
    else:
        (path / damage.WEIGHTS).unlink()
        names["embed.weight"] = "embed.safetensors"
    for tensor, name in names.items():
        damage.write_tensors(path / name, {tensor: tensors[tensor]})
    started = Path(prepare(environment=started_on("7", path)).directory)

    weight_map = json.loads((started / INDEX_FILE).read_text())["weight_map"]
    assert {p.name for p in started.glob("*.safetensors")} == set(weight_map.values())
    assert damage.WEIGHTS not in weight_map.values()
    for tensor, name in weight_map.items():
        assert (started / name).samefile(path / names[tensor])


def test_a_model_with_its_weights_in_two_formats_starts(prepare: Prepare, tmp_path: Path) -> None:
    """As in a shared cache of Hugging Face, where files cannot be moved."""
    write_ema(tmp_path / "model")
    prepared = prepare()

    assert prepared.handover.initial.version == "base"
    assert not (Path(prepared.directory) / EMA).exists()


def test_a_start_version_with_a_hidden_file_of_weights_is_refused(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "root" / "7")
    (path / damage.WEIGHTS).rename(path / ".7.safetensors")
    (path / INDEX_FILE).write_text(
        json.dumps({"weight_map": dict.fromkeys(("embed.weight", "head.weight"), ".7.safetensors")})
    )
    prepared = prepare(environment=started_on("7", path))

    assert prepared.handover.initial.version == "base"
    assert present(prepared.handover.start_failure).refusal.reason is Reason.CHECKPOINT_MALFORMED


EMA = "model_ema.safetensors"


def write_ema(checkpoint: Path) -> None:
    """Weights that the worker does not read, because model.safetensors exists."""
    shutil.copy(checkpoint / damage.WEIGHTS, checkpoint / EMA)


DIGEST = "RLFLEET_START_DIGEST"
RUN = "RLFLEET_START_RUN_ID"


def digest_of(path: Path) -> str:
    checkpoint = open_checkpoint(str(path), None)
    try:
        return checkpoint.digest(lambda: None)
    finally:
        checkpoint.close()


def test_a_process_starts_on_the_run_and_digest_that_the_fleet_serves(
    prepare: Prepare, tmp_path: Path
) -> None:
    path = write_tiny(tmp_path / "root" / "current", 43.0)
    environment = started_on("43", path) | {RUN: "run-7", DIGEST: digest_of(path)}
    handover = prepare(environment=environment).handover

    assert handover.start_failure is None
    initial = handover.initial
    assert (initial.version, initial.run_id, initial.digest) == ("43", "run-7", digest_of(path))


def test_a_rewritten_path_is_not_loaded_under_its_old_version(
    prepare: Prepare, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The trainer writes 44 into the directory of 43, and a container restarts."""
    path = write_tiny(tmp_path / "root" / "current", 43.0)
    pinned = digest_of(path)
    write_tiny(path, 44.0)
    environment = started_on("43", path) | {RUN: "run-7", DIGEST: pinned}
    prepared = prepare(environment=environment)

    initial, failure = prepared.handover.initial, prepared.handover.start_failure
    assert (initial.version, initial.run_id) == ("base", None)
    assert failure is not None
    assert failure.refusal.reason is Reason.DIGEST_MISMATCH
    assert (failure.version, failure.run_id, failure.path) == ("43", "run-7", str(path))
    for named in (pinned, digest_of(path)):
        assert named in failure.refusal.message
        assert named in caplog.text


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A store that hangs until the test ends."""
    monkeypatch.setattr(start_weights, "SILENCE_SECONDS", 0.5)
    event = threading.Event()
    yield event
    event.set()


def test_a_start_path_on_a_hanging_file_system_is_reported_and_the_model_starts(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hanging: threading.Event
) -> None:
    path = write_tiny(tmp_path / "root" / "43", 43.0)

    def open_(directory: str, roots: Roots | None) -> Any:
        if directory == str(path):
            hanging.wait(5)
        return open_checkpoint(directory, roots)

    monkeypatch.setattr(start_weights, "open_checkpoint", open_)
    handover = prepare(environment=started_on("43", path)).handover

    assert handover.initial.version == "base"
    assert present(handover.start_failure).refusal.reason is Reason.SOURCE_UNREADABLE
    assert str(tmp_path / "root") in present(handover.start_failure).refusal.message


def test_a_start_path_with_an_io_error_is_reported_and_the_model_starts(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "lseek", broken)
    path = write_tiny(tmp_path / "root" / "43", 43.0)
    handover = prepare(environment=started_on("43", path)).handover

    assert handover.initial.version == "base"
    assert present(handover.start_failure).refusal.reason is Reason.SOURCE_UNREADABLE


def test_a_model_that_is_not_there_is_named_with_what_is_there_instead(
    prepare: Prepare, tmp_path: Path
) -> None:
    (tmp_path / "root" / "step_1").mkdir(parents=True)
    for model, found in (("root/step_2", f"{tmp_path}/root has step_1"), ("none", "")):
        refusal = refusal_from(prepare, model=str(tmp_path / model))

        assert refusal.reason is Reason.SOURCE_ABSENT
        assert f"{tmp_path / model}" in refusal.message
        assert found in refusal.message


@pytest.mark.parametrize(
    ("module", "what"), [(start_weights, "open_checkpoint"), (start_up, "Roots")]
)
def test_a_model_or_root_on_a_hanging_file_system_fails_the_start(
    prepare: Prepare,
    monkeypatch: pytest.MonkeyPatch,
    hanging: threading.Event,
    module: ModuleType,
    what: str,
) -> None:
    monkeypatch.setattr(module, what, lambda *_: hanging.wait(5))
    refusal = refusal_from(prepare)

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "0.5 s" in refusal.message


def test_a_file_system_that_hangs_during_the_read_fails_the_start(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, hanging: threading.Event
) -> None:
    monkeypatch.setattr(TinyInspector, "read", lambda *_, **__: hanging.wait(5))
    assert refusal_from(prepare).reason is Reason.SOURCE_UNREADABLE


def test_a_slow_file_system_is_waited_for(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch, hanging: threading.Event
) -> None:
    monkeypatch.setattr(start_weights, "SILENCE_SECONDS", 2.5)
    read, pieces = TinyInspector.read, 30

    def slowly(
        inspector: TinyInspector, checkpoint: Any, *, budget: int, check_cancelled: Any
    ) -> bool:
        for _ in range(pieces):
            hanging.wait(0.1)
            check_cancelled()
        return read(inspector, checkpoint, budget=budget, check_cancelled=check_cancelled)

    monkeypatch.setattr(TinyInspector, "read", slowly)

    assert prepare().handover.initial.version == "base"


def test_a_changed_model_does_not_count_as_the_served_version(
    prepare: Prepare, tmp_path: Path
) -> None:
    pinned = digest_of(tmp_path / "model")
    write_tiny(tmp_path / "model", 9.0)
    failure = prepare(
        environment={"RLFLEET_START_VERSION": "base", DIGEST: pinned}
    ).handover.start_failure

    assert failure is not None
    assert failure.refusal.reason is Reason.DIGEST_MISMATCH


@pytest.mark.parametrize("named", [{RUN: "", DIGEST: ""}, {}], ids=["empty", "absent"])
def test_empty_variables_count_as_absent(
    prepare: Prepare, tmp_path: Path, named: dict[str, str]
) -> None:
    path = write_tiny(tmp_path / "root" / "7")
    handover = prepare(environment=started_on("7", path) | named).handover

    assert (handover.initial.version, handover.initial.run_id) == ("7", None)
    assert handover.initial.digest == digest_of(path)


@pytest.mark.parametrize("named", [{RUN: "two words"}, {DIGEST: "sha256:short"}], ids=str)
def test_an_invalid_run_or_digest_is_not_used(
    prepare: Prepare, tmp_path: Path, named: dict[str, str]
) -> None:
    path = write_tiny(tmp_path / "root" / "7")
    failure = present(prepare(environment=started_on("7", path) | named).handover.start_failure)

    assert failure.refusal.reason is Reason.BAD_REQUEST


def test_the_model_may_be_a_cached_repository(
    prepare: Prepare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0" * 40
    repository = tmp_path / "hub" / "models--org--name"
    write_tiny(repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for revision in (commit, "main", None):
        prepared = prepare(model="org/name", revision=revision)

        assert prepared.handover.initial.checkpoint.path.endswith(commit)
        assert str(prepared.handover.initial.source) == f"hf://org/name@{commit}"


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        pytest.param({"version": "two words"}, Refusal, id="a version that is not a label"),
        pytest.param({"model": "org/not-there"}, Refusal, id="a model that is not there"),
        pytest.param(
            {"environment": {"RLFLEET_ADMIN_TOKEN_FILE": "/nothing"}}, OSError, id="no token file"
        ),
    ],
)
def test_an_impossible_configuration_fails_before_the_engine_starts(
    prepare: Prepare, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        prepare(**changes)


def test_the_plugin_takes_the_handover_and_fails_without_it(
    prepare: Prepare, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "_handed", [])
    with pytest.raises(RuntimeError, match="fleet_worker serve"):
        handover.handed_over()
    handed = prepare().handover
    handover.hand_over(handed)

    assert handover.handed_over() is handed


def test_the_rights_of_trainers_are_handed_over(prepare: Prepare) -> None:
    handover = prepare(
        weights_management="External", max_loras=3, weight_transfer_backend="nccl"
    ).handover

    assert handover.driver.management == "External"
    assert handover.adapters.slots == 3
    assert handover.transfer.backend == "nccl"
