"""Bytes held in memory: written while there is room, sealed at last."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.descriptors import left_open, open_descriptors

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.memory import MemoryFile, NotEnoughMemoryError

CONTENT = os.urandom(300_000)
STEP = 1 << 16


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile("file", len(CONTENT))
    yield made
    made.close()


@pytest.fixture
def held(file: MemoryFile) -> MemoryFile:
    file.write(memoryview(CONTENT), 0)
    file.seal()
    return file


def test_held_bytes_cannot_be_modified(held: MemoryFile) -> None:
    for change in (
        lambda: os.pwrite(held.descriptor, b"x", 0),
        lambda: os.ftruncate(held.descriptor, 1),
        lambda: os.ftruncate(held.descriptor, 1 << 20),
    ):
        with pytest.raises(PermissionError):
            change()


def test_another_process_can_open_the_held_bytes_by_descriptor(held: MemoryFile) -> None:
    assert Path(f"/proc/{os.getpid()}/fd/{held.descriptor}").read_bytes() == CONTENT


def test_a_write_to_a_closed_file_has_no_effect(file: MemoryFile) -> None:
    file.close()
    before = open_descriptors()
    other = os.memfd_create("other")  # gets the number of the closed one
    file.write(memoryview(CONTENT), 0)

    assert os.fstat(other).st_size == 0
    os.close(other)
    assert not left_open(before)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_a_kernel_without_memory_counts_as_too_little_memory(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_arguments: object) -> int:
        raise OSError(code, "full")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(NotEnoughMemoryError):
        file.write(memoryview(CONTENT), 0)


def test_writing_stops_before_it_takes_the_engines_memory(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STEP", STEP)
    left = [3 * STEP, 2 * STEP, STEP - 1]
    monkeypatch.setattr(memory, "headroom", lambda: left.pop(0))
    half = STEP // 2  # of a step: every second piece needs a look at the memory
    for position in range(0, 2 * STEP, half):
        file.write(memoryview(CONTENT)[position : position + half], position)
    with pytest.raises(NotEnoughMemoryError):
        file.write(memoryview(CONTENT)[2 * STEP :], 2 * STEP)

    assert left == []
    assert os.fstat(file.descriptor).st_size == 2 * STEP


def test_a_long_piece_is_written_in_steps(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STEP", STEP)
    file.write(memoryview(CONTENT), 0)

    assert os.pread(file.descriptor, len(CONTENT) + 1, 0) == CONTENT


def test_the_default_budget_is_a_share_of_the_containers_memory() -> None:
    assert 0 < memory.default_budget() < memory.memory_limit()
    assert 0 <= memory.memory_left() <= memory.memory_limit()


@pytest.mark.parametrize("advice", [memory._MADV_POPULATE_WRITE, 9999])
def test_bytes_are_written_and_sealed_alike_in_huge_pages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, advice: int
) -> None:
    setting = tmp_path / "shmem_enabled"
    setting.write_text("always within_size [advise] never deny force")
    monkeypatch.setattr(memory, "_SHARED_HUGE_PAGES", setting)
    monkeypatch.setattr(memory, "_MADV_POPULATE_WRITE", advice)
    monkeypatch.setattr(memory, "_STEP", STEP)
    file = MemoryFile("huge", len(CONTENT))
    for begin in range(0, len(CONTENT), STEP // 2):
        file.write(memoryview(CONTENT)[begin : begin + STEP // 2], begin)
    file.seal()

    assert os.fstat(file.descriptor).st_size == len(CONTENT)
    assert os.pread(file.descriptor, len(CONTENT) + 1, 0) == CONTENT
    with pytest.raises(PermissionError):
        os.pwrite(file.descriptor, b"x", 0)
    file.close()


def test_a_kernel_without_huge_pages_is_not_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    setting = tmp_path / "shmem_enabled"
    setting.write_text("always within_size advise [never] deny force")
    monkeypatch.setattr(memory, "_SHARED_HUGE_PAGES", setting)
    monkeypatch.setattr(memory.mmap, "mmap", lambda *_, **__: pytest.fail("it was asked"))
    file = MemoryFile("plain", len(CONTENT))
    file.write(memoryview(CONTENT), 0)
    file.close()
