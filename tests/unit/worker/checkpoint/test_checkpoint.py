"""Checkpoints on disk: open, hold, hash, detect changes."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.refusals import refusal_from
from tests.support.tiny import CONFIG, write_tiny

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def nothing() -> None:
    return


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "1")


@pytest.fixture
def checkpoint(directory: Path) -> Iterator[Checkpoint]:
    opened = open_checkpoint(str(directory), Roots([directory.parent]))
    yield opened
    opened.close()


def test_an_open_checkpoint_lists_its_tensors(checkpoint: Checkpoint) -> None:
    assert {name: spec.signature for name, spec in checkpoint.tensors.items()} == {
        "embed.weight": ("BF16", (2, 4)),
        "head.weight": ("BF16", (4,)),
    }
    assert checkpoint.config == CONFIG


def test_a_file_written_to_while_it_is_read_is_refused(
    checkpoint: Checkpoint, directory: Path
) -> None:
    def write() -> None:
        with (directory / damage.WEIGHTS).open("r+b") as file:
            file.write(b"x")

    refusal = refusal_from(checkpoint.read_all, budget=1 << 20, check_cancelled=write)
    assert refusal.reason is Reason.CHECKPOINT_CHANGED


def test_computing_the_digest_can_be_cancelled(checkpoint: Checkpoint) -> None:
    def give_up() -> None:
        raise Refusal(Reason.SUPERSEDED, "a newer one")

    refusal_from(checkpoint.digest, give_up)


def test_a_deleted_directory_does_not_count_as_a_change(
    checkpoint: Checkpoint, directory: Path
) -> None:
    shutil.rmtree(directory)

    checkpoint.check_same_on_disk(Roots([directory.parent]))


def test_files_that_another_node_has_deleted_do_not_count_as_a_change(
    checkpoint: Checkpoint, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS answers ESTALE for the open file. Bytes that a load would still read are lost."""
    shutil.rmtree(directory)
    fstat, descriptors = os.fstat, {file.descriptor for file in checkpoint.files}

    def stale(descriptor: int) -> os.stat_result:
        if descriptor in descriptors:
            raise OSError(errno.ESTALE, "Stale file handle")
        return fstat(descriptor)

    monkeypatch.setattr(os, "fstat", stale)
    checkpoint.check_same_on_disk(Roots([directory.parent]))
    assert refusal_from(checkpoint.check_unread).reason is Reason.SOURCE_UNREADABLE


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_replaced_file_is_a_change(checkpoint: Checkpoint, directory: Path, name: str) -> None:
    copy = directory / "copy"
    shutil.copy(directory / name, copy)
    copy.rename(directory / name)
    refusal = refusal_from(checkpoint.check_same_on_disk, Roots([directory.parent]))

    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    assert name in refusal.message


def test_a_replaced_file_is_a_change_while_a_network_file_system_still_shows_the_old_one(
    checkpoint: Checkpoint, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It answers `stat` from its cache for seconds, but looks again when a file is opened."""
    known = {name: (directory / name).stat() for name in ("model.safetensors", "config.json")}
    shutil.rmtree(directory)
    write_tiny(directory, 2.0)
    with monkeypatch.context() as cached:
        cached.setattr(os, "stat", lambda name, **_: known[name])
        refusal = refusal_from(checkpoint.check_same_on_disk, Roots([directory.parent]))

    assert refusal.reason is Reason.CHECKPOINT_CHANGED


@pytest.mark.parametrize(
    ("deleted", "written"),
    [
        (True, "model-00001-of-00001.safetensors"),
        (True, "model.safetensors.index.json"),
        (False, "model.safetensors.index.json"),
    ],
)
def test_a_directory_whose_weights_are_now_in_other_files_has_changed(
    checkpoint: Checkpoint, directory: Path, deleted: bool, written: str
) -> None:
    """Another run saves its weights in parts there, and leaves config.json as it is."""
    if deleted:
        (directory / damage.WEIGHTS).unlink()
    (directory / written).write_text("other weights, or where they are")
    refusal = refusal_from(checkpoint.check_same_on_disk, Roots([directory.parent]))
    assert refusal.reason is Reason.CHECKPOINT_CHANGED


@pytest.mark.parametrize("sharded", [True, False])
def test_weights_of_which_files_are_deleted_one_by_one_do_not_count_as_a_change(
    tmp_path: Path, sharded: bool
) -> None:
    directory = write_tiny(tmp_path / "step")
    names = [damage.WEIGHTS]
    if sharded:
        names = ["a.safetensors", "b.safetensors"]
        tensors = damage.read_tensors(directory / damage.WEIGHTS)
        for name, tensor in zip(names, sorted(tensors), strict=True):
            damage.write_tensors(directory / name, {tensor: tensors[tensor]})
        (directory / damage.WEIGHTS).unlink()
    (directory / "optimizer.bin").write_text("no weights")
    checkpoint = open_checkpoint(str(directory), None)
    for name in [*names, "config.json"]:
        (directory / name).unlink()
        checkpoint.check_same_on_disk(Roots([tmp_path]))


def test_a_path_that_now_resolves_elsewhere_is_refused(
    checkpoint: Checkpoint, directory: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory.rename(directory.parent / "moved")
    directory.symlink_to(write_tiny(tmp_path_factory.mktemp("elsewhere")))
    refusal = refusal_from(checkpoint.check_same_on_disk, Roots([directory.parent]))
    assert refusal.reason is Reason.SOURCE_OUTSIDE_ROOTS


def test_numbers_that_transformers_writes_as_objects_are_numbers(tmp_path: Path) -> None:
    limits = {"__float__": "Infinity"}, {"__float__": "-Infinity"}, {"__float__": ["Infinity"]}
    directory = write_tiny(tmp_path / "1", limits=limits)
    checkpoint = open_checkpoint(str(directory), None)
    checkpoint.close()

    assert checkpoint.config["limits"] == [math.inf, -math.inf, limits[2]]


def test_two_checkpoints_with_the_same_content_have_different_identities(tmp_path: Path) -> None:
    first = open_checkpoint(str(write_tiny(tmp_path / "1")), None)
    second = open_checkpoint(str(write_tiny(tmp_path / "2")), None)
    again = open_checkpoint(str(tmp_path / "1"), None)

    assert first.identity.files == again.identity.files
    assert first.identity.files != second.identity.files
    for each in (first, second, again):
        each.close()


def test_closing_closes_every_descriptor(directory: Path) -> None:
    before = open_descriptors()
    checkpoint = open_checkpoint(str(directory), None)
    checkpoint.read_all(budget=1 << 20, check_cancelled=nothing)
    checkpoint.close()
    checkpoint.close()

    assert not left_open(before)


def test_a_refused_checkpoint_leaves_no_open_descriptor(directory: Path) -> None:
    (directory / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "model.safetensors"}})
    )
    before = open_descriptors()
    refusal_from(open_checkpoint, str(directory), None)

    assert not left_open(before)
