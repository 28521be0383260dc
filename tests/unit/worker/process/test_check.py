"""`python -m fleet_worker check`: the checks of a stage, without an engine."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.refusals import refusal_from
from tests.support.slime_deltas import write_delta
from tests.support.tiny import TinyInspector, write_tiny
from tests.support.worker_commands import parsed

from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.process.check import check
from fleet_worker.process.start_weights import open_model
from fleet_worker.protocol import Reason

Checked = tuple[int, dict[str, Any]]
Check = Callable[..., Checked]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "model")


@pytest.fixture
def checked(model: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    def run(
        directory: Path, root: Path | None = None, rank: int = 16, kind: str | None = None
    ) -> Checked:
        flags = [f"--against={model}", f"--max-lora-rank={rank}", "--output=json"]
        flags += [f"--weights-root={root}"] * (root is not None) + [f"--kind={kind}"] * bool(kind)
        arguments = parsed("check", directory, *flags)
        code = check(arguments, TinyInspector())
        return code, json.loads(capsys.readouterr().out)

    return run


def test_a_checkpoint_that_fits_is_accepted_with_its_digest(tmp_path: Path, checked: Check) -> None:
    directory = write_tiny(tmp_path / "2", 2.0)
    opened = open_checkpoint(str(directory), None)

    code, found = checked(directory)

    assert code == 0
    assert (found["accepted"], found["kind"], found["tensors"]) == (True, "checkpoint", 2)
    assert found["bytes"] == opened.size_bytes
    assert found["digest"] == opened.digest(lambda: None)
    opened.close()


def test_a_delta_to_the_model_is_accepted_with_the_digest_of_the_whole_weights(
    tmp_path: Path, model: Path, checked: Check
) -> None:
    full = write_tiny(tmp_path / "full", 2.0)
    delta = write_delta(model, full, tmp_path / "step_1", version=1, base_version=0)

    assert checked(delta)[1] == checked(full)[1]
    assert checked(delta)[0] == 0


def test_what_a_worker_ignores_or_casts_is_remarked(
    tmp_path: Path, model: Path, checked: Check, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = write_tiny(tmp_path / "2", 2.0, in_float32=True)
    (directory / "generation_config.json").write_text('{"eos_token_id": 7}')

    code, found = checked(directory)

    assert code == 0
    assert checked(model)[1]["remarks"] == []
    defaults, types = found["remarks"]
    assert "eos_token_id [7]" in defaults
    assert "2 tensors from F32 to BF16" in types
    arguments = parsed("check", directory, f"--against={model}")
    check(arguments, TinyInspector())
    assert [f"remark: {r}" for r in found["remarks"]] == capsys.readouterr().out.splitlines()[1:]


@pytest.mark.parametrize("content", ["", "[]", "{", "\x00"])
def test_a_version_with_defaults_that_cannot_be_read_is_accepted_with_a_remark(
    tmp_path: Path, checked: Check, content: str
) -> None:
    directory = write_tiny(tmp_path / "2", 2.0)
    (directory / "generation_config.json").write_text(content)

    code, found = checked(directory)
    (remark,) = found["remarks"]
    assert (code, "generation_config.json" in remark) == (0, True)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("chat_template.jinja", "{{ other }}"),
        ("tokenizer_config.json", '{"chat_template": "{{ other }}"}'),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"7": {"content": "<tool>"}}}'),
    ],
)
def test_a_tokenizer_of_a_version_is_ignored_with_a_remark(
    tmp_path: Path, model: Path, checked: Check, name: str, content: str
) -> None:
    own = {"chat_template": "{{ own }}", "added_tokens_decoder": {"7": {"content": "<end>"}}}
    (model / "tokenizer_config.json").write_text(json.dumps(own))
    directory = write_tiny(tmp_path / "2", 2.0)
    (directory / "chat_template.jinja").write_text("{{ own }}\n")
    assert checked(directory)[1]["remarks"] == []
    (directory / "chat_template.jinja").unlink()
    (directory / name).write_text(content)

    code, found = checked(directory)
    (remark,) = found["remarks"]
    assert (code, "tokenizer" in remark) == (0, True)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda d: os.truncate(d / damage.WEIGHTS, 100), "CheckpointTruncated"),
        (lambda d: damage.edit_config(d, hidden_size=8), "CheckpointMismatch"),
        (lambda d: (d / damage.WEIGHTS).unlink(), "SourceNotFound"),
        (lambda d: write_tiny(d, 0.0), "SourceNotReady"),
    ],
    ids=["truncated", "another model", "no weights", "zeros that are just being written"],
)
def test_a_checkpoint_that_a_stage_refuses_is_refused(
    tmp_path: Path, checked: Check, spoil: Callable[[Path], object], reason: str
) -> None:
    directory = write_tiny(tmp_path / "2", 2.0)
    spoil(directory)

    code, found = checked(directory)

    assert code == 1
    assert (found["accepted"], found["reason"]) == (False, reason)
    assert found["message"]


def test_zeros_are_accepted_where_the_model_is_zero(
    tmp_path: Path, model: Path, checked: Check
) -> None:
    write_tiny(model, 0.0)

    assert checked(write_tiny(tmp_path / "2", 0.0))[0] == 0


def test_a_directory_outside_the_roots_is_refused(tmp_path: Path, checked: Check) -> None:
    directory = write_tiny(tmp_path / "2", 2.0)

    assert checked(directory, root=tmp_path)[0] == 0
    assert checked(directory, root=tmp_path / "model")[1]["reason"] == "SourceOutsideRoots"


def test_an_adapter_is_checked_against_rank_and_modules(tmp_path: Path, checked: Check) -> None:
    adapter = write_adapter(tmp_path / "a", seed=1, modules=TINY_MODULES, rank=2)
    alien = write_adapter(tmp_path / "b", seed=1, rank=2)

    code, found = checked(adapter)
    assert (code, found["kind"], found["tensors"]) == (0, "LoRA adapter", 2)
    assert checked(adapter, rank=1)[1]["reason"] == "CheckpointMismatch"
    assert checked(adapter, rank=0)[1]["reason"] == "AdaptersOff"
    assert checked(alien)[1]["reason"] == "CheckpointMismatch"


def test_a_checkpoint_with_the_files_of_an_adapter_is_a_checkpoint_unless_the_adapter_is_meant(
    tmp_path: Path, checked: Check
) -> None:
    directory = write_tiny(tmp_path / "2", 2.0)
    alone = checked(directory)[1]["digest"]
    write_adapter(directory, seed=1, modules=TINY_MODULES, rank=2)

    code, found = checked(directory)
    assert (code, found["kind"], found["digest"]) == (0, "checkpoint", alone)
    assert checked(directory, rank=0)[0] == 0
    code, found = checked(directory, kind="adapter")
    assert (code, found["kind"]) == (0, "LoRA adapter")
    damage.edit_config(directory, hidden_size=8)
    assert checked(directory)[1]["reason"] == "CheckpointMismatch"


def test_an_adapter_with_the_configuration_of_its_model_is_an_adapter(
    tmp_path: Path, checked: Check
) -> None:
    directory = write_tiny(tmp_path / "2")
    write_adapter(directory, seed=1, modules=TINY_MODULES, rank=2)
    (directory / damage.WEIGHTS).unlink()

    assert checked(directory)[1]["kind"] == "LoRA adapter"


def test_an_adapter_that_is_read_as_a_checkpoint_is_refused(tmp_path: Path, checked: Check) -> None:
    adapter = write_adapter(tmp_path / "a", seed=1, modules=TINY_MODULES, rank=2)

    assert checked(adapter, kind="checkpoint")[1]["reason"] == "SourceNotFound"


def test_a_model_that_cannot_be_read_is_a_usage_error(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model / "config.json").unlink()
    arguments = parsed("check", tmp_path, f"--against={model}")

    assert check(arguments, TinyInspector()) == 2
    assert "config.json" in capsys.readouterr().err


def test_an_absent_directory_is_refused_with_what_is_there(tmp_path: Path, checked: Check) -> None:
    write_tiny(tmp_path / "step_2")
    _, found = checked(tmp_path / "step_3", root=tmp_path)

    assert found["reason"] == "SourceAbsent"
    assert "step_2" in found["message"]


def test_a_refusal_names_the_kind_that_the_directory_was_read_as(
    tmp_path: Path, checked: Check, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An adapter with a head, and a copy of its model's configuration, looks like a model."""
    adapter = write_adapter(tmp_path / "a", seed=1, modules=TINY_MODULES, rank=2)
    (adapter / "config.json").write_bytes((model / "config.json").read_bytes())
    (adapter / "value_head.safetensors").write_bytes((model / damage.WEIGHTS).read_bytes())
    damage.edit_config(adapter, hidden_size=8)

    assert checked(adapter)[1]["kind"] == "checkpoint"
    assert checked(adapter, kind="adapter")[1]["kind"] == "LoRA adapter"
    assert checked(adapter, kind="adapter", rank=1)[1]["kind"] == "LoRA adapter"
    arguments = parsed("check", adapter, f"--against={model}")
    assert check(arguments, TinyInspector()) == 1
    assert "refused as a checkpoint (--kind" in capsys.readouterr().out


def test_an_absolute_path_is_never_the_name_of_a_repository(tmp_path: Path) -> None:
    assert refusal_from(open_model, str(tmp_path / "absent"), None).reason is Reason.SOURCE_ABSENT
