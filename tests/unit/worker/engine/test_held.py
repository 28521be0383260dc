"""The bytes of a staged version in a process of the engine: when they are registered, and when they go."""

from __future__ import annotations

import io
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_torch import imported_over_fake_torch
from tests.support.threads import threads_named

from fleet_worker.checkpoint.memory import MemoryFile

SIZE = 3 * mmap.PAGESIZE


@pytest.fixture
def held_module() -> Iterator[Any]:
    with imported_over_fake_torch("fleet_worker.engine.held") as module:
        yield module


class FakeCuda:
    """A device that notes its calls.

    Fields:
        calls: in order, with the first letter of the content.
        refuses: why it registers nothing; empty if it does.
        gate: registering waits for it.
    """

    def __init__(self, module: Any) -> None:
        self._module = module
        self.calls: list[str] = []
        self.refuses = ""
        self.breaks = False
        self.has_buffers = False
        self.gate = threading.Event()
        self.gate.set()
        self._registered: dict[int, mmap.mmap] = {}

    def open(self) -> None:
        self.has_buffers = True

    def register(self, content: mmap.mmap) -> int:
        assert self.gate.wait(10)
        if self.breaks:
            raise MemoryError("no room")
        if self.refuses:
            raise self._module.RegistrationError(self.refuses)
        with pytest.raises(TypeError):
            content[0] = 1  # sealed bytes stay as they are
        self.calls.append(f"register {content[:1].decode()}")
        address = 1 << 20 << len(self._registered)
        self._registered[address] = content
        return address

    def unregister(self, address: int) -> None:
        content = self._registered.pop(address)
        assert not content.closed, "CUDA must not keep pages that are gone"
        self.calls.append(f"unregister {content[:1].decode()}")
        if self.breaks:
            raise MemoryError("no context")


@pytest.fixture
def cuda(held_module: Any) -> FakeCuda:
    return FakeCuda(held_module)


@pytest.fixture
def held(held_module: Any, cuda: FakeCuda) -> Iterator[Any]:
    held = held_module.Held(cuda)
    yield held
    done(held)


class Files:
    """Sealed files in memory, by the letter that they are full of."""

    def __init__(self) -> None:
        self.files: dict[str, MemoryFile] = {}

    def link(self, letter: str) -> str:
        if letter not in self.files:
            file = self.files[letter] = MemoryFile(letter, SIZE)
            file.write(memoryview(letter.encode() * SIZE), 0)
            file.seal()
        return f"/proc/self/fd/{self.files[letter].descriptor}"


@pytest.fixture
def files() -> Iterator[Files]:
    made = Files()
    yield made
    for file in made.files.values():
        file.close()


def done(held: Any, *links: str) -> dict[str, Any]:
    """The answer once no work is left. The same call may come any number of times."""
    while True:
        held.want(links)
        answer = dict(held.state())
        if answer.pop("done"):
            return answer
        threading.Event().wait(0.005)


def maps_of(letter: str) -> int:
    """How many mappings of such a file this process has."""
    return Path("/proc/self/maps").read_text().count(f"/memfd:{letter} ")


def test_wanted_files_are_registered_once_and_then_no_work_is_left(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    answer = done(held, files.link("a"), files.link("b"))
    again = done(held, files.link("a"), files.link("b"))

    assert cuda.calls == ["register a", "register b"]
    assert answer == again
    assert (answer["bytes"], answer["registered"], answer["why_not"]) == (2 * SIZE, 2 * SIZE, "")
    assert [end - begin for begin, end in held.registered()] == [SIZE, SIZE]


def test_the_call_does_not_wait_for_the_device(held: Any, cuda: FakeCuda, files: Files) -> None:
    cuda.gate.clear()
    held.want([files.link("a")])
    answer = held.state()
    cuda.gate.set()

    assert (answer["done"], answer["registered"]) == (False, 0)
    assert done(held, files.link("a"))["registered"] == SIZE


def test_what_is_no_longer_wanted_is_unregistered_and_then_unmapped(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    done(held, files.link("a"), files.link("b"))
    answer = done(held, files.link("b"))

    assert cuda.calls == ["register a", "register b", "unregister a"]
    assert answer["bytes"] == SIZE
    assert (maps_of("a"), maps_of("b")) == (0, 1)


def test_a_file_that_is_dropped_while_the_device_works_is_let_go(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    cuda.gate.clear()
    held.want([files.link("a"), files.link("b")])
    held.want([])
    cuda.gate.set()
    done(held)

    assert [call for call in cuda.calls if call.endswith("b")] == [], (
        "it was dropped before its turn"
    )
    assert cuda.calls in ([], ["register a", "unregister a"])
    assert (maps_of("a"), maps_of("b")) == (0, 0)


def test_the_device_registers_a_file_again_if_the_worker_wants_it_again(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    done(held, files.link("a"))
    held.want([])
    done(held, files.link("a"))

    assert cuda.calls == ["register a", "unregister a", "register a"]


def test_a_descriptor_that_another_file_has_by_now_is_another_file(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    descriptor = os.open(files.link("a"), os.O_RDONLY)
    done(held, f"/proc/self/fd/{descriptor}")
    other = os.open(files.link("b"), os.O_RDONLY)
    os.dup2(other, descriptor)
    done(held, f"/proc/self/fd/{descriptor}")
    os.close(other)
    os.close(descriptor)

    assert cuda.calls == ["register a", "register b", "unregister a"]


@pytest.mark.parametrize("breaks", [False, True])
def test_what_the_device_does_not_register_is_held_all_the_same_with_the_reason(
    held: Any, cuda: FakeCuda, files: Files, breaks: bool
) -> None:
    cuda.breaks, cuda.refuses = breaks, "error 801"
    answer = done(held, files.link("a"))

    assert (answer["bytes"], answer["registered"], answer["buffers"]) == (SIZE, 0, True)
    assert answer["why_not"] == ("MemoryError: no room" if breaks else "error 801")
    assert held.registered() == ()
    done(held)
    assert maps_of("a") == 0


def test_addresses_that_the_device_still_reads_as_an_earlier_version_never_get_other_bytes(
    held: Any, cuda: FakeCuda, files: Files, caplog: pytest.LogCaptureFixture
) -> None:
    done(held, files.link("a"))
    cuda.breaks = True
    answer = done(held)

    assert cuda.calls == ["register a", "unregister a"]
    assert (answer["bytes"], held.registered()) == (0, ())
    assert maps_of("a") == 1
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_device_that_works_does_not_delay_the_end_of_the_process(
    held_module: Any, cuda: FakeCuda, files: Files
) -> None:
    before = threads_named("rlfleet-hold")
    held = held_module.Held(cuda)
    cuda.gate.clear()
    held.want([files.link("a")])
    working = threads_named("rlfleet-hold") - before
    cuda.gate.set()
    done(held)

    assert working
    assert all(each.daemon for each in working)


def test_one_look_counts_the_huge_pages_of_all_files(
    held: Any, held_module: Any, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = [files.link("a"), files.link("b")]
    inode = Path(links[1]).stat().st_ino
    text = f"""\
7f00-7f10 rw-p 00000000 00:00 0
FilePmdMapped:      1024 kB
7f10-7f20 r--s 00000000 00:01 {inode}    /memfd:b (deleted)
Size:                 64 kB
ShmemPmdMapped:     2048 kB
VmFlags: rd mr me
7f20-7f30 r--s 00200000 00:01 {inode}    /memfd:b (deleted)
FilePmdMapped:      2048 kB
"""
    opened = list[io.StringIO]()

    def read() -> io.StringIO:
        opened.append(io.StringIO(text))
        return opened[-1]

    monkeypatch.setattr(held_module, "_SMAPS", SimpleNamespace(open=read))
    assert done(held, *links)["huge"] == 4 << 20
    assert len(opened) == 1, "the kernel walks all pages of the process each time"


def test_bytes_that_come_from_files_go_through_pinned_memory_too(held: Any) -> None:
    assert done(held)["buffers"]


def test_without_a_device_files_are_mapped_only(held_module: Any, files: Files) -> None:
    held = held_module.Held(None)
    answer = done(held, files.link("a"))

    assert (answer["registered"], answer["buffers"]) == (0, False)
    assert "CPU" in answer["why_not"]
    assert maps_of("a") == 1
    done(held)
    assert maps_of("a") == 0


def test_a_load_uses_the_mapping_that_is_held(held: Any, cuda: FakeCuda, files: Files) -> None:
    done(held, files.link("a"))
    content = held.content_of(files.files["a"].descriptor, SIZE)

    assert (content[:2], maps_of("a")) == (b"aa", 1)
    assert cuda.calls == ["register a"]


def test_what_a_load_maps_by_itself_goes_with_the_next_call(
    held: Any, cuda: FakeCuda, files: Files
) -> None:
    files.link("a")
    held.content_of(files.files["a"].descriptor, SIZE)
    mapped = maps_of("a")
    done(held)

    assert (mapped, maps_of("a")) == (1, 0)
    assert cuda.calls == [], "nothing is registered inside a pause"


def test_a_mapping_stays_as_long_as_a_tensor_over_it(held: Any, files: Files) -> None:
    done(held, files.link("a"))
    view = memoryview(held.content_of(files.files["a"].descriptor, SIZE))
    done(held)

    assert view[:2] == b"aa"
    view.release()
    del view
    assert maps_of("a") == 0


def test_only_sealed_memory_is_held(held: Any, tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"x" * SIZE)

    with pytest.raises(ValueError, match="sealed"):
        held.want([str(file)])
    assert done(held)["bytes"] == 0


def test_a_descriptor_that_a_pipe_has_by_now_does_not_hang_the_engine(
    held: Any, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    asked = (ValueError, held.want, [str(tmp_path / "pipe")])
    calling = threading.Thread(target=pytest.raises, args=asked, daemon=True)
    calling.start()
    calling.join(10)

    assert not calling.is_alive()
