"""Bytes held in memory: reserved first, sealed at last."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.descriptors import open_descriptors

from fleet_worker.checkpoint import memory
from fleet_worker.checkpoint.memory import MemoryFile, NotEnoughMemoryError
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

CONTENT = os.urandom(300_000)
STEP = 1 << 16


def nothing() -> None:
    return


@pytest.fixture
def file() -> Iterator[MemoryFile]:
    made = MemoryFile("file", len(CONTENT))
    yield made
    made.close()


@pytest.fixture
def held(file: MemoryFile) -> MemoryFile:
    file.reserve(nothing)
    file.write(memoryview(CONTENT), 0)
    file.seal()
    return file


def test_held_bytes_equal_the_written_ones(held: MemoryFile) -> None:
    assert os.pread(held.descriptor, len(CONTENT) + 1, 0) == CONTENT


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


def test_memory_is_reserved_before_the_first_write(file: MemoryFile) -> None:
    file.reserve(nothing)

    assert os.fstat(file.descriptor).st_blocks * 512 >= len(CONTENT)


def test_a_write_waits_until_its_memory_is_reserved(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STEP", STEP)
    steps: list[int] = []
    written = threading.Event()

    def write() -> None:
        file.write(memoryview(CONTENT)[STEP : 2 * STEP], STEP)
        written.set()

    writer = threading.Thread(target=write)

    def check_cancelled() -> None:
        steps.append(os.fstat(file.descriptor).st_size)
        if len(steps) == 1:
            writer.start()
        if len(steps) == 2:
            assert not written.is_set(), "the second step is not reserved"
        if len(steps) == 3:
            assert written.wait(10)

    file.reserve(check_cancelled)
    writer.join()

    assert steps[:3] == [0, STEP, 2 * STEP]


def test_closing_ends_a_waiting_write_and_closes_the_descriptor(file: MemoryFile) -> None:
    before = open_descriptors()
    writer = threading.Thread(target=file.write, args=(memoryview(CONTENT), 0))
    writer.start()
    file.close()
    writer.join(10)

    assert not writer.is_alive()
    assert open_descriptors() == before - 1


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.ENOMEM])
def test_a_kernel_without_memory_counts_as_too_little_memory(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def full(*_arguments: int) -> None:
        raise OSError(code, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(NotEnoughMemoryError):
        file.reserve(nothing)


def test_reserving_stops_before_it_takes_the_engines_memory(
    file: MemoryFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "_STEP", STEP)
    left = [3 * STEP, 2 * STEP, STEP - 1]
    monkeypatch.setattr(memory, "headroom", lambda: left.pop(0))
    with pytest.raises(NotEnoughMemoryError):
        file.reserve(nothing)

    assert os.fstat(file.descriptor).st_size == 2 * STEP


def test_reserving_can_be_cancelled(file: MemoryFile) -> None:
    def give_up() -> None:
        raise Refusal(Reason.SUPERSEDED, "a newer one")

    with pytest.raises(Refusal):
        file.reserve(give_up)
    assert os.fstat(file.descriptor).st_size == 0


def test_the_default_budget_is_a_share_of_the_containers_memory() -> None:
    assert 0 < memory.default_budget() < memory.memory_limit()
    assert 0 <= memory.memory_left() <= memory.memory_limit()
