"""`rlfleet delta` on full checkpoints in directories."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import cli
from tests.support.cli import golden
from tests.support.deltas import apply, metadata, read_tensors
from tests.support.fake_objects import FakeObjects, patches
from tests.support.pages import starting_with
from typer.testing import CliRunner, Result

from fleet_worker.process.manifest import digest_in
from rlfleet.cli.app import app
from rlfleet.deltas.sources import FromStateDict
from rlfleet.deltas.writing import write_full


def run(*arguments: object) -> Result:
    """The outcome of a command line."""
    return CliRunner().invoke(app, ["delta", *map(str, arguments)], env={"COLUMNS": "1000"})


def save(folder: Path, tensor: Any, config: str = "{}") -> Path:
    """A full checkpoint."""
    folder.mkdir()
    start = folder.parent / f"start_{folder.name}"
    start.mkdir()
    (start / "config.json").write_text(config)
    write_full(FromStateDict({"a": tensor, "b": tensor}, start), folder, None, lambda _: None)
    return folder


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save(tmp_path / "step_42", np.zeros(1000, np.float32))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    tensor = np.zeros(1000, np.float32)
    tensor[:10] = 1
    return save(tmp_path / "step_43", tensor)


def test_two_checkpoints_become_a_delta_with_versions_by_the_directories(
    base, new, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    out = Path("weights/step_43")
    done = run(base, new, out)

    assert done.exit_code == 0, done.output
    assert apply(read_tensors(base), out) == read_tensors(new)
    found = metadata(out)
    assert (found["version"], found["base_version"]) == ("43", "42")
    assert found["base_digest"] == digest_in(str(base))
    assert found["result_digest"] == digest_in(str(new))
    golden(done.stdout.replace(str(tmp_path), ""), "delta.txt")


def test_programs_read_the_share_the_bytes_and_the_digests(base, new, tmp_path):
    out = tmp_path / "delta"
    done = run(base, new, out, "--version", "44", "--base-version", "w-41", "-o", "json")

    found = json.loads(done.stdout)
    assert metadata(out)["version"] == "44"
    assert found == {
        "directory": str(out),
        "version": "44",
        "baseVersion": "w-41",
        "baseDigest": digest_in(str(base)),
        "resultDigest": digest_in(str(new)),
        "encoding": metadata(out)["delta_encoding"],
        "changedShare": 0.01,
        "changedTensors": 2,
        "writtenBytes": sum(file.stat().st_size for file in out.iterdir()),
        "fullBytes": (new / "model.safetensors").stat().st_size,
    }


def test_equal_checkpoints_make_a_delta_without_tensors(base, tmp_path):
    out = tmp_path / "step_44"
    done = run(base, base, out)

    assert done.exit_code == 0, done.output
    assert [file.name for file in out.iterdir()] == ["model.safetensors.index.json"]
    assert metadata(out)["result_digest"] == metadata(out)["base_digest"]


def test_a_base_that_is_a_delta_itself_is_refused_with_the_remedy(base, new, tmp_path):
    run(base, new, tmp_path / "delta_43")

    done = run(tmp_path / "delta_43", new, tmp_path / "delta_44")

    assert done.exit_code == 1
    assert "delta_43 holds a delta, version 43; give the full checkpoint" in done.stderr
    assert not (tmp_path / "delta_44").exists()


def test_checkpoints_of_other_files_are_refused_with_the_remedy(base, tmp_path):
    other = save(tmp_path / "step_43", np.zeros(999, np.float32))

    done = run(base, other, tmp_path / "out_43")

    assert done.exit_code == 1
    assert "a is F32 [999], and was F32 [1000]; copy it" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words", "code"),
    [
        (("step_42", "absent", "out_43"), "absent cannot be read", 1),
        (("step_42", "step_43", "step_43"), "step_43 has files of an earlier version", 1),
        (("step_42", "step_43", "out_42"), "both versions are 42", 1),
        (("step_42", "step_43", "out", "--version", "a b"), "version is 'a b'", 3),
    ],
)
@pytest.mark.usefixtures("base", "new")
def test_what_cannot_be_written_is_one_line(tmp_path, monkeypatch, arguments, words, code):
    monkeypatch.chdir(tmp_path)
    done = run(*arguments)

    assert done.exit_code == code
    assert done.stderr.startswith("error: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_commands_of_the_page_write_and_publish_a_delta(base, new, tmp_path, monkeypatch):
    ((_, block),) = starting_with("rlfleet delta ", pages="docs/how-to/publish-deltas.md")
    write, publish = block.splitlines()
    for there, here in (("/local", base.parent), ("/weights", tmp_path / "weights")):
        write = write.replace(there, str(here))

    assert run(*shlex.split(write)[2:]).exit_code == 0
    digest = metadata(tmp_path / "weights/run-7/step_43")["result_digest"]
    objects = FakeObjects()
    _, *words = shlex.split(publish.replace("sha256:…", digest))
    code, _, _ = cli.run(monkeypatch, objects, *words)

    assert code == 0
    assert patches(objects)[0]["spec"]["digest"] == digest
