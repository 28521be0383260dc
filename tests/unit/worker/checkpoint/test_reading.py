"""One pass over the bytes of a checkpoint."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.refusals import refusal_from
from tests.support.tiny import tiny_inspect, write_tiny

from fleet_worker.checkpoint import blocks, memory, reading
from fleet_worker.checkpoint.digests import tensor_digest
from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.keeping import OwnPass
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def nothing() -> None:
    return


def write_shards(directory: Path, shards: int, tensors: int, length: int) -> Path:
    """A checkpoint of several files, every byte by chance."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text("{}")
    chance = random.Random(shards)  # noqa: S311 - weights, no secrets
    names = {}
    for shard in range(shards):
        file = f"model-{shard}.safetensors"
        content: damage.Tensors = {
            f"t{shard}.{number}": ("U8", [length], chance.randbytes(length))
            for number in range(tensors)
        }
        damage.write_tensors(directory / file, content)
        names |= dict.fromkeys(content, file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    return directory


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(blocks, "BLOCK_ELEMENTS", 256)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[int, int]]:
    """How often each byte of each file was read: (inode, position) → times."""
    counted: Counter[tuple[int, int]] = Counter()
    lock, read = threading.Lock(), os.preadv

    def preadv(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = read(descriptor, buffers, offset)
        inode = os.fstat(descriptor).st_ino
        with lock:
            counted.update((inode, offset + each) for each in range(count))
        return count

    monkeypatch.setattr(os, "preadv", preadv)
    return counted


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["from files", "held"])
def test_checking_hashing_and_holding_read_every_byte_once(
    tmp_path: Path, reads: Counter[tuple[int, int]], budget: int
) -> None:
    path = write_shards(tmp_path / "1", shards=3, tensors=3, length=5000)
    checkpoint = open_checkpoint(str(path), None)
    judged: Counter[str] = Counter()
    lock = threading.Lock()

    def inspect(spec: TensorSpec, block: memoryview) -> bool:
        with lock:
            judged[spec.name] += len(block)
        return True

    held = checkpoint.read_all(budget=budget, check_cancelled=nothing, inspect=inspect)
    digest = checkpoint.digest(lambda: pytest.fail("the bytes are known"))

    assert held is (budget > 0)
    assert set(reads.values()) == {1}
    assert len(reads) == checkpoint.size_bytes
    assert judged == Counter(dict.fromkeys(checkpoint.tensors, 5000))
    lines = [
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n"
        for file in sorted(path.iterdir())
    ]
    assert digest == "sha256:" + hashlib.sha256("".join(lines).encode()).hexdigest()
    for file in checkpoint.files if held else ():
        content = os.pread(checkpoint.descriptor_of(file), file.state.size + 1, 0)
        assert content == (path / file.name).read_bytes()
    checkpoint.close()


LENGTHS = st.lists(st.integers(0, 700), min_size=0, max_size=8)


@given(header=st.integers(8, 900), lengths=LENGTHS)
def test_pieces_cover_a_file_and_split_tensors_at_blocks(header: int, lengths: list[int]) -> None:
    specs, position = [], header
    for number, length in enumerate(lengths):
        specs.append(TensorSpec(str(number), "U8", (length,), position, position + length))
        position += length
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_ELEMENTS", 64)
        pieces = list(blocks.pieces_of(specs, position, most_bytes=256))

    assert [begin for begin, _, _ in pieces] == [0, *(end for _, end, _ in pieces)][:-1]
    assert pieces[-1][1] == position
    assert all(0 < end - begin <= 256 for begin, end, _ in pieces)
    seen = Counter[str]()
    for begin, end, parts in pieces:
        for spec, first, last in parts:
            assert begin <= first < last <= end
            assert (first - spec.begin) % 64 == 0
            seen[spec.name] += last - first
    assert seen == Counter(
        {spec.name: spec.end - spec.begin for spec in specs if spec.end > spec.begin}
    )


@pytest.mark.usefixtures("small_pieces")
def test_blocks_of_zeros_are_recorded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    content = bytearray(b"\x01" * 10_000)
    content[256:768] = bytes(512)  # the second and the third block
    content[9984:] = bytes(16)  # the last one, a short one
    tensors: damage.Tensors = {
        "a": ("U8", [100], bytes(100)),
        "b": ("U8", [10_000], bytes(content)),
    }
    damage.write_tensors(tmp_path / damage.WEIGHTS, tensors)
    checkpoint = open_checkpoint(str(tmp_path), None)
    checkpoint.read_all(budget=0, check_cancelled=nothing, inspect=tiny_inspect)
    checkpoint.close()

    assert checkpoint.zero_blocks == {"a": {0}, "b": {1, 2, 39}}


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("budget", [0, 1 << 30], ids=["from files", "held"])
def test_a_refusal_in_one_file_stops_the_reading_of_all(tmp_path: Path, budget: int) -> None:
    path = write_shards(tmp_path / "1", shards=4, tensors=2, length=20_000)
    before, threads = open_descriptors(), set(threading.enumerate())
    checkpoint = open_checkpoint(str(path), None)

    def inspect(spec: TensorSpec, _block: memoryview) -> bool:
        if spec.name == "t2.1":
            raise Refusal(Reason.CHECKPOINT_NOT_FINITE, "t2.1")
        return True

    refusal = refusal_from(
        checkpoint.read_all, budget=budget, check_cancelled=nothing, inspect=inspect
    )
    checkpoint.close()

    assert refusal.reason is Reason.CHECKPOINT_NOT_FINITE
    assert not left_open(before)
    assert set(threading.enumerate()) <= threads


@pytest.mark.usefixtures("small_pieces")
def test_reading_begins_again_without_memory_that_others_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = open_checkpoint(
        str(write_shards(tmp_path / "1", shards=2, tensors=2, length=20_000)), None
    )
    monkeypatch.setattr(memory, "_STEP", 16384)
    left = [1 << 40, 1 << 40, -1]  # before the pass, a first step, and a second one
    monkeypatch.setattr(memory, "headroom", lambda: left.pop(0) if left else -1)
    before = open_descriptors()

    assert checkpoint.read_all(budget=1 << 30, check_cancelled=nothing) is False
    assert left == []
    assert checkpoint.held == {}
    assert not left_open(before)
    assert checkpoint.digest(lambda: pytest.fail("the bytes are known")).startswith("sha256:")
    assert checkpoint.tensor_digests() == digests_in(tmp_path / "1")
    checkpoint.close()


def digests_in(directory: Path) -> dict[str, str]:
    """Tensor name → digest, of all files of a directory."""
    digests = {}
    for file in directory.glob("*.safetensors"):
        for name, (dtype, shape, content) in damage.read_tensors(file).items():
            digest = tensor_digest(dtype, shape)
            digest.update(content)
            digests[name] = digest.hexdigest()
    return digests


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("length", [0, 1, 4096, 20_000])
def test_tensors_that_are_not_kept_are_digested_in_the_same_pass(
    tmp_path: Path, reads: Counter[tuple[int, int]], length: int
) -> None:
    path = write_shards(tmp_path / "1", shards=2, tensors=3, length=length)
    expected = digests_in(path)
    checkpoint = open_checkpoint(str(path), None)
    checkpoint.read_all(budget=0, check_cancelled=nothing)

    assert checkpoint.tensor_digests() == expected
    assert set(reads.values()) == {1}
    checkpoint.close()


def test_the_digests_of_tensors_that_leave_the_memory_are_those_of_the_kept_bytes(
    tmp_path: Path,
) -> None:
    path = write_shards(tmp_path / "1", shards=2, tensors=3, length=100)
    expected = digests_in(path)
    checkpoint = open_checkpoint(str(path), None)
    assert checkpoint.read_all(budget=1 << 20, check_cancelled=nothing)
    digest = checkpoint.digest(nothing)
    write_shards(path, shards=3, tensors=3, length=100)
    checkpoint.leave_memory(OwnPass())

    assert checkpoint.tensor_digests() == expected
    assert checkpoint.digest(nothing) == digest
    assert not checkpoint.is_held
    checkpoint.close()


E3 = """
import os, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
from fleet_worker.checkpoint import reading
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.errors import Refusal
path = sys.argv[1]
checkpoint = open_checkpoint(path, None)
calls = 0
def check_cancelled():
    global calls
    calls += 1
    if calls == 3:
        Path(path, "model.safetensors").open("wb").close()
try:
    checkpoint.read_all(budget=0, check_cancelled=check_cancelled, inspect=lambda spec, block: any(block))
except Refusal as refusal:
    print(refusal.reason)
"""


def test_a_file_rewritten_during_the_check_does_not_crash_the_process(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    data = b"\x01" * (8 << 20)
    damage.write_tensors(tmp_path / damage.WEIGHTS, {"a": ("U8", [len(data)], data)})
    command = [sys.executable, "-c", E3, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout.strip()) == (0, "CheckpointChanged"), done.stderr


@pytest.mark.parametrize("budget", [0, 1 << 20], ids=["from files", "held"])
def test_a_file_that_shrinks_during_the_read_is_refused(tmp_path: Path, budget: int) -> None:
    path = write_tiny(tmp_path / "1")
    before = open_descriptors()
    checkpoint = open_checkpoint(str(path), None)
    refusal = refusal_from(
        checkpoint.read_all,
        budget=budget,
        check_cancelled=lambda: os.truncate(path / damage.WEIGHTS, 10),
        inspect=tiny_inspect,
    )
    checkpoint.close()

    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    assert not left_open(before)


def test_the_digest_is_of_the_held_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writes through a mapping set neither time while their page is dirty; on a network file system
    times may come from a cache.
    """
    monkeypatch.setattr(OpenFile, "check_unchanged", lambda _: None)
    path = write_shards(tmp_path / "1", shards=1, tensors=2, length=5000)
    (file,) = path.glob("*.safetensors")
    checkpoint = open_checkpoint(str(path), None)
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as written:

        def inspect(spec: TensorSpec, _block: memoryview) -> bool:
            written[spec.begin] ^= 0xFF
            return True

        assert checkpoint.read_all(budget=1 << 30, check_cancelled=nothing, inspect=inspect)
        hashes = checkpoint.hashes(nothing)
    (opened_file,) = checkpoint.files
    held = os.pread(checkpoint.descriptor_of(opened_file), opened_file.state.size, 0)
    checkpoint.close()

    assert held != file.read_bytes()
    assert hashes[file.name] == hashlib.sha256(held).hexdigest()


def test_only_sealed_memory_is_mapped() -> None:
    package = Path(reading.__file__).parents[1]
    users = {file.name for file in package.rglob("*.py") if "mmap.mmap(" in file.read_text()}
    callers = {
        file.name
        for file in package.rglob("*.py")
        if "mapped(" in file.read_text() and file.name != "mapping.py"
    }

    assert users == {"mapping.py", "memory.py"}, "which takes memory that no one else has yet"
    assert callers == {"held.py"}, "which maps what is in memory only"
