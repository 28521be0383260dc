"""Which files of a directory are its weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.layouts import READ, REFUSED, SHARDS, THIRDS, indexed, write_layout
from tests.support.refusals import refusal_from
from tests.support.tiny import write_tiny

from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.weight_sets import check_tensors_once, parse_index
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import SINGLE_FILE


@pytest.mark.parametrize("layout", READ)
def test_the_one_set_of_weights_in_a_directory_is_read(tmp_path: Path, layout: str) -> None:
    files, more, read = READ[layout]
    checkpoint = open_checkpoint(str(write_layout(tmp_path / "1", files, **more)), None)
    found = {name for name, *_ in checkpoint.identity.files}
    checkpoint.close()

    assert found == {*read, "config.json"}


@pytest.mark.parametrize("layout", REFUSED)
def test_a_directory_without_one_certain_set_of_weights_is_refused(
    tmp_path: Path, layout: str
) -> None:
    files, more, reason, named = REFUSED[layout]
    refusal = refusal_from(open_checkpoint, str(write_layout(tmp_path / "1", files, **more)), None)

    assert refusal.reason is reason
    assert [name for name in named if name not in refusal.message] == []


@pytest.mark.parametrize("layout", ["one file", "the files of an index"])
@pytest.mark.parametrize("written", [SINGLE_FILE, THIRDS[0]])
def test_a_second_set_that_appears_after_staging_is_a_change(
    tmp_path: Path, layout: str, written: str
) -> None:
    files, more, _ = READ[layout]
    if written in files:
        written, more = SHARDS[0], {}
    directory = write_layout(tmp_path / "1", files, **more)
    checkpoint = open_checkpoint(str(directory), None)
    damage.write_tensors(directory / written, {"a": ("U8", [1], b"2")})
    refusal = refusal_from(checkpoint.check_same_on_disk, Roots([tmp_path]))
    checkpoint.close()

    assert refusal.reason is Reason.CHECKPOINT_CHANGED


def test_files_that_an_index_without_files_gets_after_staging_are_a_change(tmp_path: Path) -> None:
    index = indexed("x.safetensors", "y.safetensors")
    directory = write_layout(tmp_path / "1", [SINGLE_FILE], index=index)
    checkpoint = open_checkpoint(str(directory), None)
    checkpoint.check_same_on_disk(Roots([tmp_path]))
    damage.write_tensors(directory / "x.safetensors", {"a": ("U8", [1], b"2")})
    refusal = refusal_from(checkpoint.check_same_on_disk, Roots([tmp_path]))
    checkpoint.close()

    assert refusal.reason is Reason.CHECKPOINT_CHANGED


def test_a_file_under_another_name_that_appears_after_staging_does_not_count_as_a_change(
    tmp_path: Path,
) -> None:
    directory = write_tiny(tmp_path / "1")
    checkpoint = open_checkpoint(str(directory), None)
    (directory / "model_ema.safetensors").write_bytes(b"")
    checkpoint.check_same_on_disk(Roots([tmp_path]))
    checkpoint.close()


def an_index(**weight_map: Any) -> bytes:
    return json.dumps({"weight_map": weight_map}).encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"{", id="no JSON"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"{}", id="no map"),
        pytest.param(an_index(), id="an empty map"),
        pytest.param(b'{"weight_map": [1]}', id="a list"),
        pytest.param(an_index(x="../a.safetensors"), id="a way out"),
        pytest.param(an_index(x="/etc/a.safetensors"), id="an absolute path"),
        pytest.param(an_index(x="a.bin"), id="a pickle"),
    ],
)
def test_an_invalid_index_is_malformed(content: bytes) -> None:
    assert refusal_from(parse_index, content).reason is Reason.CHECKPOINT_MALFORMED


def spec(name: str) -> TensorSpec:
    return TensorSpec(name, "F32", (1,), 8, 12)


HELD = {"a.safetensors": [spec("x")], "b.safetensors": [spec("y")]}


def test_an_index_that_matches_its_files_passes() -> None:
    check_tensors_once(an_index(x="a.safetensors", y="b.safetensors"), HELD)


@pytest.mark.parametrize(
    "index",
    [
        pytest.param({"x": "a.safetensors"}, id="a tensor left out"),
        pytest.param(
            {"x": "a.safetensors", "y": "b.safetensors", "z": "b.safetensors"},
            id="a tensor invented",
        ),
        pytest.param({"x": "b.safetensors", "y": "a.safetensors"}, id="files exchanged"),
    ],
)
def test_an_index_that_does_not_match_its_files_is_refused(index: dict[str, str]) -> None:
    refusal = refusal_from(check_tensors_once, an_index(**index), HELD)
    assert refusal.reason is Reason.CHECKPOINT_MALFORMED
