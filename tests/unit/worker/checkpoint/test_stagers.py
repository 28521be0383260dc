"""Stagers: real processes that read versions, and what becomes of a stage when one ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.refusals import refusal_from

from fleet_worker.checkpoint import memory, stager_messages, stagers
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.keeping import Work
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.stager_messages import (
    Done,
    FoundFile,
    GoneError,
    Progress,
    receive,
    send,
)
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stager, Stagers
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

ENOUGH = 1 << 40
ONE = damage.bfloat16(1.0)


def nothing() -> None:
    return


@pytest.fixture
def pool() -> Iterator[Stagers]:
    made = Stagers()
    yield made
    made.close()


def write(folder: Path, tensors: damage.Tensors) -> Checkpoint:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    damage.write_tensors(folder / damage.WEIGHTS, tensors)
    return open_checkpoint(str(folder), None)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    """Three tensors, one of them zero in its first blocks; a name that JSON cannot carry as text."""
    made = write(
        tmp_path / "1",
        {
            "a": ("BF16", [1 << 20], bytes(3 << 18) + ONE * (5 << 17)),
            "b\ud800": ("F32", [4], b"\0\0\x80\x3f" * 4),
            "c": ("U8", [0], b""),
        },
    )
    yield made
    made.close()


@pytest.mark.parametrize("budget", [0, ENOUGH], ids=["from files", "held"])
def test_a_stager_finds_what_a_pass_in_this_process_finds(
    pool: Stagers, checkpoint: Checkpoint, budget: int
) -> None:
    work = Work(
        files=checkpoint.files, specs=checkpoint.specs, budget=budget, check_cancelled=nothing
    )
    own, found = own_pass({}).run(work), StagerPass(pool, {}).run(work)

    assert found.content == own.content
    assert found.content[damage.WEIGHTS].zero_blocks == {"a": {0, 1, 2}}
    assert set(found.held) == set(own.held) == ({damage.WEIGHTS} if budget else set())
    for each in found.held.values():
        assert memory.is_sealed(each.descriptor)
        (file,) = checkpoint.files
        assert os.pread(each.descriptor, each.size + 1, 0) == file.read(0, each.size)
    for each in (*own.held.values(), *found.held.values()):
        each.close()


def test_a_stager_refuses_as_a_pass_in_this_process_does(pool: Stagers, tmp_path: Path) -> None:
    infinite = write(tmp_path / "1", {"w": ("BF16", [2], ONE + damage.bfloat16(float("inf")))})
    large = write(tmp_path / "2", {"w": ("BF16", [2], ONE + damage.bfloat16(1e30))})
    for bad, casts in ((infinite, {}), (large, {"w": "F16"})):
        refusals = []
        for reading in (own_pass(casts), StagerPass(pool, casts)):
            refusal = refusal_from(bad.read_in, reading, budget=0, check_cancelled=nothing)
            refusals.append((refusal.reason, refusal.message))
        assert refusals[0] == refusals[1]
        assert refusals[0][0] is Reason.CHECKPOINT_NOT_FINITE
        bad.close()


@pytest.mark.parametrize("budget", [0, ENOUGH], ids=["from files", "held"])
@pytest.mark.parametrize("equal", [True, False])
def test_a_stager_compares_two_tensors(
    pool: Stagers, tmp_path: Path, budget: int, equal: bool
) -> None:
    content = os.urandom(5 << 20)
    other = content if equal else content[:-1] + bytes([content[-1] ^ 1])
    tensors: damage.Tensors = {
        "a": ("U8", [len(content)], content),
        "b": ("U8", [len(other)], other),
    }
    checkpoint = write(tmp_path / "1", tensors)
    checkpoint.pair = ("b", "a")
    for reading in (own_pass({}), StagerPass(pool, {})):
        checkpoint.read_in(reading, budget=budget, check_cancelled=nothing)
        assert checkpoint.is_pair_equal is equal
        checkpoint.release()
    checkpoint.close()


def test_a_stager_gets_no_secret_of_the_worker(
    pool: Stagers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    stager = pool.take()

    assert "secret" not in Path(f"/proc/{stager.pid}/environ").read_text()
    stager.end()


def test_bytes_that_leave_the_memory_are_digested_by_a_stager(
    pool: Stagers, checkpoint: Checkpoint
) -> None:
    checkpoint.read_in(StagerPass(pool, {}), budget=0, check_cancelled=nothing)
    digest, tensors = checkpoint.digest(nothing), checkpoint.tensor_digests()
    checkpoint.read_in(StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing)
    assert not checkpoint.tensor_digests()
    checkpoint.leave_memory(StagerPass(pool, None))

    assert not checkpoint.is_held
    assert (checkpoint.digest(nothing), checkpoint.tensor_digests()) == (digest, tensors)


def test_one_stager_is_ready_and_serves_one_stage_after_the_other(
    pool: Stagers, checkpoint: Checkpoint
) -> None:
    pool.keep_ready()
    (ready,) = pool._ready
    for _ in range(3):
        checkpoint.read_in(StagerPass(pool, {}), budget=0, check_cancelled=nothing)
        pool.keep_ready()

    assert pool._ready == [ready]
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert os.getpriority(os.PRIO_PROCESS, ready.pid) == min(own + 10, 19)
    assert Path(f"/proc/{ready.pid}/oom_score_adj").read_text() == "1000\n"


def test_a_stager_imports_no_library_of_the_engine(pool: Stagers, checkpoint: Checkpoint) -> None:
    checkpoint.read_in(StagerPass(pool, {}), budget=0, check_cancelled=nothing)
    (ready,) = pool._ready
    mapped = Path(f"/proc/{ready.pid}/maps").read_text()

    assert "numpy" in mapped
    assert "torch" not in mapped
    status = Path(f"/proc/{ready.pid}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 128 * 1024, "kB"


Do = Callable[[Stager], object]


@pytest.fixture
def on_take(pool: Stagers, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Stager]]:
    """Stops the first stagers that passes take, and does something to each. Returns the list of all taken."""

    def set_up(*actions: Do) -> list[Stager]:
        taken: list[Stager] = []
        left = list(actions)
        take = pool.take

        def taking() -> Stager:
            stager = take()
            taken.append(stager)
            if left:
                os.kill(stager.pid, signal.SIGSTOP)
                threading.Timer(0, left.pop(0), (stager,)).start()
            return stager

        monkeypatch.setattr(pool, "take", taking)
        return taken

    return set_up


def killed_by(number: int) -> Do:
    return lambda stager: os.kill(stager.pid, number)


def test_a_stager_that_dies_is_replaced_once(
    pool: Stagers, checkpoint: Checkpoint, on_take: Callable[..., list[Stager]]
) -> None:
    taken = on_take(killed_by(signal.SIGKILL))

    assert checkpoint.read_in(StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing)
    assert len(taken) == 2
    assert not taken[0].is_running


def test_a_second_death_is_a_refusal_and_the_next_stage_has_a_stager(
    pool: Stagers, checkpoint: Checkpoint, on_take: Callable[..., list[Stager]]
) -> None:
    before = open_descriptors()
    taken = on_take(*[killed_by(signal.SIGKILL)] * 2)
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing
    )

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "was killed by SIGKILL" in refusal.message
    assert refusal.retry_after_seconds is not None
    assert len(taken) == 2
    assert not checkpoint.held
    assert checkpoint.read_in(StagerPass(pool, {}), budget=0, check_cancelled=nothing) is False
    pool.close()
    assert not left_open(before)


def test_a_stager_killed_for_memory_is_reported_as_such_and_not_replaced(
    pool: Stagers,
    checkpoint: Checkpoint,
    on_take: Callable[..., list[Stager]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kills = [0]
    monkeypatch.setattr(memory, "oom_kills", lambda: kills[0])

    def kill(stager: Stager) -> None:
        kills[0] += 1
        os.kill(stager.pid, signal.SIGKILL)

    taken = on_take(kill)
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing
    )

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "out of memory" in refusal.message
    assert "--staging-memory-bytes" in refusal.message
    assert len(taken) == 1


def test_a_stager_that_cannot_start_is_a_refusal(
    pool: Stagers, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", full)
    pool.keep_ready()
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=0, check_cancelled=nothing
    )

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert "cannot be started" in refusal.message


def test_a_released_pass_ends_its_stager_even_if_that_hangs(
    pool: Stagers,
    checkpoint: Checkpoint,
    on_take: Callable[..., list[Stager]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stagers, "_LEAVE_SECONDS", 0.1)
    before = open_descriptors()
    taken = on_take(lambda _: checkpoint.release())  # as a newer stage does; this one stays stopped
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing
    )
    assert refusal.reason is Reason.SUPERSEDED
    assert len(taken) == 1
    assert not taken[0].is_running
    pool.close()
    assert not left_open(before)


@pytest.mark.parametrize("state", ["R", "D"])
def test_a_killed_stager_is_waited_for_while_the_kernel_frees_its_memory_and_not_while_it_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    monkeypatch.setattr(stagers, "_LEAVE_SECONDS", 0.0)
    monkeypatch.setattr(stagers, "_FREE_SECONDS", 0.01)
    monkeypatch.setattr(stagers, "_hangs", lambda _: state == "D")
    stager = Stager()
    os.kill(stager.pid, signal.SIGSTOP)
    kill = stager._process.kill
    late = threading.Timer(0.3, kill)
    monkeypatch.setattr(stager._process, "kill", late.start)
    stager.end()

    assert stager.is_running == (state == "D")
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (state == "D")
    late.join()
    stager._process.wait(30)


def test_a_process_that_a_signal_can_end_does_not_hang() -> None:
    assert not stagers._hangs(os.getpid())


def test_a_pass_released_before_it_has_a_stager_reads_nothing(
    pool: Stagers, checkpoint: Checkpoint
) -> None:
    reading = StagerPass(pool, {})
    reading.release()
    refusal = refusal_from(checkpoint.read_in, reading, budget=0, check_cancelled=nothing)
    assert refusal.reason is Reason.SUPERSEDED


def test_a_stage_cancelled_at_its_progress_ends_its_stager(
    pool: Stagers, checkpoint: Checkpoint, on_take: Callable[..., list[Stager]]
) -> None:
    def cancelled() -> None:
        raise Refusal(Reason.SUPERSEDED, "a newer version")

    taken = on_take(lambda stager: os.kill(stager.pid, signal.SIGCONT))
    with pytest.raises(Refusal, match="a newer version"):
        checkpoint.read_in(StagerPass(pool, {}), budget=ENOUGH, check_cancelled=cancelled)

    assert not taken[0].is_running


def test_a_stager_ends_with_its_connection_and_frees_its_memory_first() -> None:
    stager = Stager()
    pid = stager.pid
    stager._connection.close()  # as the kernel does when the worker ends

    assert stager._process.wait(30) == 0
    assert not Path(f"/proc/{pid}").exists()


def test_two_stages_at_once_have_a_stager_each_and_one_stays(pool: Stagers) -> None:
    first, second = pool.take(), pool.take()
    assert first is not second
    pool.give_back(first)
    pool.give_back(second)

    assert pool._ready == [second]
    assert not first.is_running


def test_memory_that_is_not_sealed_is_not_taken_over(checkpoint: Checkpoint) -> None:
    (file,) = checkpoint.files
    before = open_descriptors()
    unsealed = memory.MemoryFile("x", file.state.size)
    os.ftruncate(unsealed.descriptor, file.state.size)
    with pytest.raises(ValueError, match="not sealed"):
        memory.MemoryFile.received("x", file.state.size, unsealed.descriptor)
    assert not left_open(before)


FITTING = FoundFile(sha256="0" * 64, tensors=[], zeros={0: [(0, 8)]})


@pytest.mark.parametrize(
    ("files", "sealed"),
    [
        ([], [True]),
        ([FITTING.model_copy(update={"tensors": ["0" * 64]})], [True]),
        ([FITTING.model_copy(update={"zeros": {7: [(0, 1)]}})], [True]),
        ([FITTING.model_copy(update={"zeros": {0: [(0, 9)]}})], [True]),
        ([FITTING], [False]),
        ([FITTING], [True, True]),
    ],
    ids=[
        "no file",
        "too few tensors",
        "an unknown tensor",
        "too many blocks",
        "not sealed",
        "more memory than files",
    ],
)
def test_an_answer_that_does_not_fit_is_a_refusal_and_takes_over_nothing(
    pool: Stagers,
    checkpoint: Checkpoint,
    monkeypatch: pytest.MonkeyPatch,
    files: list[FoundFile],
    sealed: list[bool],
) -> None:
    def ask(*_: Any) -> tuple[Done, list[int]]:
        (file,) = checkpoint.files
        made = [memory.MemoryFile("x", file.state.size) for _ in sealed]
        for each, is_sealed in zip(made, sealed, strict=True):
            each.write(memoryview(bytes(each.size)), 0)
            if is_sealed:
                each.seal()
        return Done(files=files), [each.descriptor for each in made]

    monkeypatch.setattr(Stager, "ask", ask)
    before = open_descriptors()
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=ENOUGH, check_cancelled=nothing
    )
    pool.close()

    assert refusal.reason is Reason.SOURCE_UNREADABLE
    assert not checkpoint.held
    assert not left_open(before)


def test_an_answer_without_the_comparison_that_was_requested_is_a_refusal(
    pool: Stagers, checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.pair = ("a", "b\ud800")
    digests = ["0" * 64] * 3
    answer = Done(files=[FITTING.model_copy(update={"tensors": digests})])
    monkeypatch.setattr(Stager, "ask", lambda *_: (answer, []))
    refusal = refusal_from(
        checkpoint.read_in, StagerPass(pool, {}), budget=0, check_cancelled=nothing
    )
    assert refusal.reason is Reason.SOURCE_UNREADABLE


def test_messages_are_typed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    for text in (
        b'{"kind":"progress","more":1}',
        b'{"kind":"x"}',
        b"no json",
        b'{"kind":"done","files":[{}]}',
        b'{"kind":"done","files":[{"sha256":"%b","tensors":[],"zeros":{"-1":[]}}]}' % (b"0" * 64),
    ):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.sendall(len(text).to_bytes(4, "big") + bytes(4) + text)
            with pytest.raises(GoneError):
                receive(theirs)
    monkeypatch.setattr(stager_messages, "_MOST_BYTES", 10)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send(ours, Progress())
        with pytest.raises(GoneError, match="too large"):
            receive(theirs)

    assert not left_open(before)


def test_files_come_only_with_the_messages_that_have_some_and_as_many_as_announced() -> None:
    before = open_descriptors()
    for message, more in ((Progress(), 0), (Done(files=[]), 1)):
        ours, theirs = socket.socketpair()
        with ours, theirs, Path("/dev/null").open("rb") as file:
            text = message.model_dump_json().encode()
            ours.sendall(len(text).to_bytes(4, "big") + (1).to_bytes(4, "big"))
            socket.send_fds(ours, [b"f"], [file.fileno()] * (1 + more))
            ours.sendall(text)
            with pytest.raises(GoneError):
                receive(theirs)

    assert not left_open(before)


def test_any_number_of_files_comes_with_a_message() -> None:
    before = open_descriptors()
    ours, theirs = socket.socketpair()
    with ours, theirs, Path("/dev/null").open("rb") as file:
        sender = threading.Thread(target=send, args=(ours, Done(files=[]), [file.fileno()] * 450))
        sender.start()
        message, files = receive(theirs)
        sender.join()
        assert message == Done(files=[])
        assert len(set(files)) == 450
        for each in files:
            os.close(each)
        ours.sendall((2).to_bytes(4, "big") + (3).to_bytes(4, "big"))
        socket.send_fds(ours, [b"f"], [file.fileno()])
        ours.close()
        with pytest.raises(GoneError):
            receive(theirs)

    assert not left_open(before)
