"""Bytes held in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.descriptors import open_descriptors

from fleet_worker.adapters import memory
from fleet_worker.adapters.files import OpenDirectory, OpenFile
from fleet_worker.core.refusals import Refusal
from fleet_worker.protocol import Reason

CONTENT = os.urandom(300_000)


@pytest.fixture
def file(tmp_path: Path) -> Iterator[OpenFile]:
    (tmp_path / "file").write_bytes(CONTENT)
    directory = OpenDirectory(str(tmp_path), None)
    opened = directory.open("file")
    directory.close()
    yield opened
    os.close(opened.descriptor)


def nothing() -> None:
    return


def test_the_held_bytes_are_the_files(file: OpenFile) -> None:
    held = memory.hold(file, nothing)

    assert os.pread(held, len(CONTENT) + 1, 0) == CONTENT
    os.close(held)


def test_held_bytes_cannot_be_changed_any_more(file: OpenFile) -> None:
    held = memory.hold(file, nothing)
    for change in (
        lambda: os.pwrite(held, b"x", 0),
        lambda: os.ftruncate(held, 1),
        lambda: os.ftruncate(held, 1 << 20),
    ):
        with pytest.raises(PermissionError):
            change()
    os.close(held)


def test_held_bytes_outlive_the_file(file: OpenFile, tmp_path: Path) -> None:
    held = memory.hold(file, nothing)
    os.truncate(tmp_path / "file", 0)

    assert os.pread(held, len(CONTENT), 0) == CONTENT
    os.close(held)


def test_another_process_can_open_the_held_bytes_by_their_descriptor(file: OpenFile) -> None:
    held = memory.hold(file, nothing)

    assert Path(f"/proc/{os.getpid()}/fd/{held}").read_bytes() == CONTENT
    os.close(held)


@pytest.mark.parametrize("bring", [memory.hold, memory.warm])
def test_a_file_that_shrinks_meanwhile_is_refused(
    bring: object, file: OpenFile, tmp_path: Path
) -> None:
    before = open_descriptors()

    def shrink() -> None:
        os.truncate(tmp_path / "file", 0)

    with pytest.raises(Refusal) as refused:
        bring(file, shrink)  # type: ignore[operator] # one of two functions
    assert refused.value.reason is Reason.CHECKPOINT_CHANGED
    assert open_descriptors() == before


@pytest.mark.parametrize("bring", [memory.hold, memory.warm])
def test_giving_up_stops_between_two_pieces(bring: object, file: OpenFile) -> None:
    def give_up() -> None:
        raise Refusal(Reason.SUPERSEDED, "a newer one")

    with pytest.raises(Refusal) as refused:
        bring(file, give_up)  # type: ignore[operator] # one of two functions
    assert refused.value.reason is Reason.SUPERSEDED


def test_the_default_budget_is_a_part_of_what_the_container_has() -> None:
    assert 0 < memory.default_budget() < memory.memory_limit()
    assert 0 <= memory.memory_left() <= memory.memory_limit()
