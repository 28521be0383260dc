"""Deltas: their result is that of the full version, bit for bit, and bad ones are refused before a load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from tests.support import damage
from tests.support.descriptors import left_open, open_descriptors
from tests.support.refusals import refusal_from
from tests.support.slime_deltas import CHECKSUMS, INDEX, encoded, overwrite, tensors_of, write_delta

from fleet_worker.checkpoint import delta_chain, memory, patching
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import (
    MOST_DELTAS,
    Bases,
    FirstBase,
    HeldBase,
    open_weights,
)
from fleet_worker.checkpoint.delta_index import ChecksumFormat
from fleet_worker.checkpoint.deltas import Delta
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stagers
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import Encoding

ENOUGH = 1 << 40
SEED = 73


def nothing() -> None:
    return


@pytest.fixture
def pool() -> Iterator[Stagers]:
    made = Stagers()
    yield made
    made.close()


def write_full(folder: Path, tensors: damage.Tensors) -> Path:
    """A checkpoint of two files, with an index."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    names, places = list(tensors), {}
    for number, half in enumerate((names[::2], names[1::2]), start=1):
        file = f"model-{number:05d}-of-00002.safetensors"
        damage.write_tensors(folder / file, {name: tensors[name] for name in half})
        places |= dict.fromkeys(half, file)
    (folder / INDEX).write_text(json.dumps({"weight_map": places}))
    return folder


def first_tensors() -> damage.Tensors:
    """A tensor of more than one piece, one of an odd length, one that never changes, and an empty one."""
    chosen = np.random.default_rng(SEED)

    def content(count: int) -> bytes:
        return (chosen.integers(0, 1 << 14, count, np.uint16)).tobytes()

    return {
        "large": ("BF16", [5 << 19], content(5 << 19)),
        "odd": ("BF16", [3, 7], content(21)),
        "still": ("F16", [64], content(64)),
        "empty": ("BF16", [0], b""),
    }


def changed(tensors: damage.Tensors, seed: int) -> damage.Tensors:
    """About one element in a hundred changes, and the last one."""
    chosen = np.random.default_rng(seed)
    result = dict(tensors)
    for name in ("large", "odd"):
        dtype, shape, content = tensors[name]
        values = np.frombuffer(content, np.uint16).copy()
        where = np.append(chosen.choice(len(values), max(1, len(values) // 100)), len(values) - 1)
        values[where] ^= np.uint16(1 + seed)
        result[name] = (dtype, shape, values.tobytes())
    return result


def edit_index(delta: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    document = json.loads((delta / INDEX).read_text())
    edit(document)
    (delta / INDEX).write_text(json.dumps(document))


class Run:
    """Versions of a run, each in full and as a delta: `full/weight_v000002`, `weight_v000002`."""

    def __init__(self, folder: Path, **form: Any) -> None:
        self.folder = folder
        self.form = form
        self.tensors = [first_tensors()]
        write_full(self.full(0), self.tensors[0])

    def full(self, version: int) -> Path:
        return self.folder / "full" / f"weight_v{version:06d}"

    def delta(self, version: int) -> Path:
        return self.folder / f"weight_v{version:06d}"

    def add(self, **more: Any) -> Path:
        """The next version."""
        version = len(self.tensors)
        self.tensors.append(changed(self.tensors[-1], version))
        write_full(self.full(version), self.tensors[version])
        numbers = {"version": f"{version:06d}", "base_version": f"{version - 1:06d}"}
        given = {**numbers, **self.form, **more}
        return write_delta(self.full(version - 1), self.full(version), self.delta(version), **given)

    @property
    def bases(self) -> Bases:
        return Bases(first=FirstBase(str(self.full(0)), "base"))


def digest_of(directory: Path) -> str:
    checkpoint = open_checkpoint(str(directory), None)
    try:
        return checkpoint.digest(nothing)
    finally:
        checkpoint.close()


def opened(run: Run, version: int, bases: Bases | None = None) -> Checkpoint:
    return open_weights(
        str(run.delta(version)), Roots([run.folder]), run.bases if bases is None else bases
    )


def read_and_close(run: Run, version: int, bases: Bases | None) -> None:
    checkpoint = opened(run, version, bases)
    try:
        checkpoint.read_in(own_pass({}), budget=ENOUGH, check_cancelled=nothing)
    finally:
        checkpoint.close()


def refusal_of(run: Run, version: int, bases: Bases | None = None) -> Refusal:
    """Why a version is refused when it is opened and read into memory; nothing stays open."""
    before = open_descriptors()
    refusal = refusal_from(read_and_close, run, version, bases)
    assert not left_open(before)
    return refusal


@pytest.mark.parametrize("checksums", CHECKSUMS)
@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
def test_a_delta_has_the_digest_and_the_bytes_of_the_full_version(
    pool: Stagers, tmp_path: Path, encoding: str, checksums: str
) -> None:
    run = Run(tmp_path, encoding=encoding, checksums=checksums, files=2)
    for _ in range(3):
        run.add()
    before = open_descriptors()
    for reading in (own_pass({}), StagerPass(pool, {})):
        checkpoint = opened(run, 3)
        assert checkpoint.digest(nothing) == digest_of(run.full(3))
        checkpoint.read_in(reading, budget=ENOUGH, check_cancelled=nothing)

        assert checkpoint.digest(nothing) == digest_of(run.full(3))
        for file in checkpoint.files:
            held = checkpoint.held[file.name]
            assert memory.is_sealed(held.descriptor)
            assert os.pread(held.descriptor, held.size, 0) == (run.full(3) / file.name).read_bytes()
        checkpoint.close()
    pool.close()
    assert not left_open(before)


def held(directory: Path) -> HeldBase:
    """A full version in memory."""
    checkpoint = open_checkpoint(str(directory), None)
    checkpoint.read_in(own_pass({}), budget=ENOUGH, check_cancelled=nothing)
    try:
        return HeldBase(checkpoint.digest(nothing), checkpoint.duplicate())
    finally:
        checkpoint.close()


def test_the_held_base_is_not_read_from_the_store(tmp_path: Path) -> None:
    run = Run(tmp_path, encoding="xor")
    base_digest = digest_of(run.full(0))
    run.add()
    run.add(base_digest=digest_of(run.full(1)), result_digest="sha256:" + "0" * 64)
    at_first = opened(run, 1, Bases((held(run.full(0)),), FirstBase(str(run.full(0)), "base")))
    by_digest = opened(run, 2, Bases((held(run.full(0)), held(run.full(1)))))
    for checkpoint, version in ((at_first, 1), (by_digest, 2)):
        size = sum(file.stat().st_size for file in run.delta(version).glob("*.safetensors"))
        assert checkpoint.read_bytes == size < checkpoint.size_bytes / 10
        checkpoint.read_in(own_pass({}), budget=ENOUGH, check_cancelled=nothing)
        assert checkpoint.digest(nothing) == digest_of(run.full(version)) != base_digest
        checkpoint.close()


def test_the_result_of_a_delta_is_the_base_of_the_next(tmp_path: Path) -> None:
    run = Run(tmp_path)
    first, second = run.add(), run.add()
    made = opened(run, 1)
    made.read_in(own_pass({}), budget=ENOUGH, check_cancelled=nothing)
    base = HeldBase(made.digest(nothing), made.duplicate())
    shutil.rmtree(first)  # a deleted directory is no other base
    following = opened(run, 2, Bases((base,)))
    made.close()
    base.checkpoint.close()
    following.read_in(own_pass({}), budget=ENOUGH, check_cancelled=nothing)

    assert following.digest(nothing) == digest_of(run.full(2))
    assert following.path == str(second)
    following.close()


def test_a_chain_begins_at_its_newest_full_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.add()
    for version in (1, 2):
        shutil.rmtree(run.delta(version))
    shutil.copytree(run.full(2), run.delta(2))
    checkpoint = opened(run, 3, Bases())

    assert checkpoint.digest(nothing) == digest_of(run.full(3))
    assert checkpoint.read_bytes > checkpoint.size_bytes
    checkpoint.close()


@pytest.mark.parametrize(
    ("name", "version", "base", "other"),
    [
        ("step_100", "000100", "000099", "step_99"),
        ("step_0100", 100, 99, "step_0099"),
        ("43-of-run-7", "43", "42", "42-of-run-7"),
        ("hedgehog", "b", "a", "another-name"),
    ],
)
def test_the_base_is_next_to_the_delta(
    tmp_path: Path, name: str, version: str | int, base: str | int, other: str
) -> None:
    run = Run(tmp_path)
    renamed = ((1, other, {"version": base}), (2, name, {"version": version, "base_version": base}))
    for number, folder, versions in renamed:
        run.add()
        run.delta(number).rename(tmp_path / folder)
        edit_index(tmp_path / folder, lambda index, found=versions: index["metadata"].update(found))
    checkpoint = open_weights(str(tmp_path / name), None, run.bases)

    assert checkpoint.digest(nothing) == digest_of(run.full(2))
    checkpoint.close()


def test_the_directories_next_to_a_chain_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path)
    for version, name in enumerate(("one", "two", "three"), start=1):
        run.add()
        run.delta(version).rename(tmp_path / name)
    read: list[str] = []
    reading = delta_chain._index_in

    def counted(path: str, roots: Roots | None) -> Any:
        read.append(Path(path).name)
        return reading(path, roots)

    monkeypatch.setattr(delta_chain, "_index_in", counted)
    checkpoint = open_weights(str(tmp_path / "three"), None, run.bases)

    assert checkpoint.digest(nothing) == digest_of(run.full(3))
    assert sorted(read) == ["full", "one", "three", "two"]
    checkpoint.close()


def test_a_delta_that_changes_nothing_has_the_bytes_of_its_base(tmp_path: Path) -> None:
    run = Run(tmp_path)
    write_delta(run.full(0), run.full(0), run.delta(1), version=1, base_version=0)
    checkpoint = opened(run, 1)

    assert checkpoint.digest(nothing) == digest_of(run.full(0))
    checkpoint.close()


def test_the_longest_chain_is_applied_and_a_longer_one_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_chain, "MOST_DELTAS", 5)
    run = Run(tmp_path)
    for _ in range(6):
        run.add()
    checkpoint = opened(run, 5)
    assert checkpoint.digest(nothing) == digest_of(run.full(5))
    checkpoint.close()

    refusal = refusal_of(run, 6)
    assert refusal.reason is Reason.BASE_MISSING
    assert "5 deltas" in refusal.message


def test_a_chain_with_too_many_tensors_for_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_chain, "_MOST_CHANGES", 3)
    run = Run(tmp_path)
    run.add()
    opened(run, 1).close()
    run.add()

    assert refusal_of(run, 2).reason is Reason.BASE_MISSING


def test_a_chain_with_too_many_files_to_open_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_chain, "_MOST_FILES", 3)
    run = Run(tmp_path, files=2)
    run.add()
    opened(run, 1).close()
    run.add()
    assert refusal_of(run, 2).reason is Reason.BASE_MISSING

    monkeypatch.setattr(delta_chain, "_MOST_FILES", 1)
    assert refusal_of(run, 1).reason is Reason.CHECKPOINT_MALFORMED


def test_a_delta_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    (file,) = run.add().glob("*.safetensors")
    checkpoint = opened(run, 1)
    os.utime(file)
    refusal = refusal_from(checkpoint.read_in, own_pass({}), budget=ENOUGH, check_cancelled=nothing)
    assert refusal.reason is Reason.CHECKPOINT_CHANGED
    checkpoint.close()


def test_a_full_checkpoint_in_the_place_of_an_opened_delta_is_a_change(tmp_path: Path) -> None:
    run = Run(tmp_path)
    folder = run.add()
    checkpoint = opened(run, 1)
    for file in sorted(folder.iterdir()):  # a deletion under way does not count
        file.unlink()
        checkpoint.check_same_on_disk(None)
    damage.write_tensors(folder / "model.safetensors", run.tensors[0])
    assert refusal_from(checkpoint.check_same_on_disk, None).reason is Reason.CHECKPOINT_CHANGED
    checkpoint.close()


def test_the_windows_of_the_longest_chain_have_room() -> None:
    empty = Delta("one", Encoding.XOR, ChecksumFormat.XXH3, (), {})
    window = patching.Patches([empty] * MOST_DELTAS)._window
    assert window >= 2 << 20
    assert 2 * MOST_DELTAS * window <= patching._ALL_WINDOWS_BYTES


# --- bad chains ---------------------------------------------------------------------------------


def _with_a_hole(run: Run) -> None:
    shutil.rmtree(run.delta(2))


def _in_a_circle(run: Run) -> None:
    index = run.delta(1) / INDEX
    index.write_text(index.read_text().replace('"000000"', '"000003"'))


def _of_itself(run: Run) -> None:
    index = run.delta(3) / INDEX
    index.write_text(index.read_text().replace('"000002"', '"000003"'))


def _of_another_run(run: Run) -> None:
    """Whose chain is whole."""
    other = run.folder / "other-run"
    shutil.copytree(run.delta(2).parent, other, ignore=shutil.ignore_patterns("other-run"))
    shutil.rmtree(run.delta(2))
    run.delta(2).symlink_to(other / "weight_v000002")


def _unreadable(run: Run) -> None:
    (run.delta(2) / INDEX).write_text(json.dumps({"metadata": {"base_version": "1"}}))


@pytest.mark.parametrize(
    ("harm", "why"),
    [
        (_with_a_hole, "there is not weight_v000002"),
        (_in_a_circle, "comes back to weight_v000003"),
        (_of_itself, "weight_v000003 is its own base"),
        (_of_another_run, "weight_v000002 is a link into another directory"),
        (_unreadable, "weight_v000002 cannot be read"),
    ],
)
def test_a_bad_chain_is_refused_with_its_deltas(
    tmp_path: Path, harm: Callable[[Run], None], why: str
) -> None:
    run = Run(tmp_path)
    for _ in range(3):
        run.add()
    harm(run)
    refusal = refusal_of(run, 3)

    assert refusal.reason is Reason.BASE_MISSING
    assert why in refusal.message
    assert "Chain: weight_v000003" in refusal.message


def test_a_delta_of_itself_is_refused_although_the_worker_holds_its_base(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add()
    run.add()
    run.add(base_digest=digest_of(run.full(2)), result_digest="sha256:" + "0" * 64)
    _of_itself(run)

    bases = Bases((held(run.full(2)),))
    refusal = refusal_of(run, 3, bases)
    bases.close()
    assert refusal.reason is Reason.BASE_MISSING
    assert "its own base" in refusal.message


def test_a_hole_is_not_filled_with_the_model(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add()
    run.add()
    shutil.rmtree(run.delta(1))

    assert refusal_of(run, 2).reason is Reason.BASE_MISSING


def test_a_held_base_that_was_rewritten_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add()
    shutil.rmtree(run.delta(1))
    shutil.copytree(run.full(1), run.delta(1))
    run.add()
    bases = Bases((held(run.delta(1)),))
    file = next(run.delta(1).glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    refusal = refusal_of(run, 2, bases)
    assert refusal.reason is Reason.BASE_MISSING
    assert "weight_v000001" in refusal.message
    bases.close()


def test_a_base_with_other_bytes_is_refused_with_the_tensor(tmp_path: Path) -> None:
    run = Run(tmp_path, encoding="xor")
    run.add()
    tensors = tensors_of(run.full(0))
    dtype, shape, content = tensors["odd"]
    tensors["odd"] = (dtype, shape, bytes([content[0] ^ 1]) + content[1:])
    shutil.rmtree(run.full(0))
    write_full(run.full(0), tensors)
    refusal = refusal_of(run, 1)

    assert refusal.reason is Reason.DELTA_MISMATCH
    assert "odd" in refusal.message


# --- bad deltas ---------------------------------------------------------------------------------


def compressed(content: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress(content)


def written(positions: list[int], content: bytes, **more: int) -> bytes:
    return compressed(overwrite(positions, content, **more))


def _odd(run: Run) -> tuple[bytes, bytes]:
    return run.tensors[0]["odd"][2], run.tensors[1]["odd"][2]


def _bomb() -> bytes:
    """40 bytes for 1 GiB of zeros, as a stream of unknown length."""
    writer = zstandard.ZstdCompressor(level=1).compressobj()
    pieces = [writer.compress(bytes(1 << 20)) for _ in range(1 << 10)]
    return b"".join([*pieces, writer.flush()])


def _wide_window() -> bytes:
    parameters = zstandard.ZstdCompressionParameters(window_log=27, compression_level=1)
    writer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return writer.compress(bytes(42)) + writer.flush()


FRAMES: dict[str, tuple[str, Callable[[Run], bytes]]] = {
    "a truncated frame": ("xor", lambda _: compressed(os.urandom(42))[:-5]),
    "the frame of a shorter tensor": ("xor", lambda _: compressed(bytes(41))),
    "no frame": ("xor", lambda _: b"not a frame"),
    "something behind": ("xor", lambda run: compressed(encoded(*_odd(run), "xor")) + b"more"),
    "a bomb": ("xor", lambda _: _bomb()),
    "a bomb of positions": ("overwrite", lambda _: _bomb()),
    "a window of 128 MiB": ("xor", lambda _: _wide_window()),
    "the frame of another tensor": ("xor", lambda _: compressed(b"\1" * 42)),
    "more positions than bytes": ("overwrite", lambda _: written([0], b"\1", count=43)),
    "positions that end too early": ("overwrite", lambda _: written([0, 1], b"\1\1", count=40)),
    "a position beyond the tensor": ("overwrite", lambda _: written([3, 42], b"\1\1")),
    "the largest position": ("overwrite", lambda _: written([(1 << 32) - 1], b"\1")),
    "positions that do not ascend": ("overwrite", lambda _: written([5, 3], b"\1\1")),
    "a position twice": ("overwrite", lambda _: written([5, 5], b"\1\1")),
    "too few new bytes": ("overwrite", lambda _: written([5, 7], b"\1")),
    "too many new bytes": (
        "overwrite",
        lambda run: compressed(encoded(*_odd(run), "overwrite") + b"\1"),
    ),
    "other new bytes": ("overwrite", lambda _: written([5], b"\1")),
}
OF_OTHER_VALUES = {"the frame of another tensor", "other new bytes"}
"""They can be applied, and do not give the version."""


@pytest.mark.parametrize("case", FRAMES)
def test_a_bad_frame_is_refused_with_its_tensor(tmp_path: Path, case: str) -> None:
    encoding, frame = FRAMES[case]
    run = Run(tmp_path, encoding=encoding)
    run.add()
    shutil.rmtree(run.delta(1))
    numbers = {"version": "000001", "base_version": "000000"}
    write_delta(
        run.full(0),
        run.full(1),
        run.delta(1),
        encoding=encoding,
        frames={"odd": frame(run)},
        **numbers,
    )
    refusal = refusal_of(run, 1)

    of_other_values = case in OF_OTHER_VALUES
    expected = Reason.DELTA_MISMATCH if of_other_values else Reason.CHECKPOINT_MALFORMED
    assert refusal.reason is expected
    assert "'odd'" in refusal.message


def _without(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["metadata"].pop(key)


def _with(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda index: index["metadata"].update(values)


def nested(levels: int) -> list[Any]:
    """A list in a list in a list: without commas."""
    return [nested(levels - 1)] if levels else []


INDEXES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "no version": _without("version"),
    "no base": _without("base_version"),
    "a path as the base": _with(base_version="../other/weight_v000000"),
    "no encoding": _without("delta_encoding"),
    "another encoding": _with(delta_encoding="deltas_zstd"),
    "another compression": _with(compression_format="lz4"),
    "another checksum": _with(checksum_format="md5"),
    "a digest that is none": _with(base_digest="abc"),
    "the digest of the base alone": _with(base_digest="sha256:" + "1" * 64),
    "a number that is none": _with(version=1.5),
    "a file of another directory": lambda index: index["weight_map"].update(odd="../x.safetensors"),
    "an entry that is not there": lambda index: index["weight_map"].update(
        other=index["weight_map"]["odd"]
    ),
    "an entry too few": lambda index: index["weight_map"].pop("odd"),
    "more values than have room": lambda index: index.update(x=[nested(400)] * 5001),
}


@pytest.mark.parametrize("case", INDEXES)
def test_a_bad_index_is_refused(tmp_path: Path, case: str) -> None:
    run = Run(tmp_path)
    edit_index(run.add(), INDEXES[case])

    assert refusal_of(run, 1).reason is Reason.CHECKPOINT_MALFORMED


def _retyped(tensors: damage.Tensors, _sums: dict[str, str]) -> None:
    _, shape, content = tensors["odd"]
    tensors["odd"] = ("I8", shape, content)


def _without_checksum(_tensors: damage.Tensors, sums: dict[str, str]) -> None:
    del sums["odd"]


def _with_short_checksum(_tensors: damage.Tensors, sums: dict[str, str]) -> None:
    sums["odd"] = sums["odd"][:8]


@pytest.mark.parametrize("harm", [_retyped, _without_checksum, _with_short_checksum])
def test_a_bad_file_is_refused(
    tmp_path: Path, harm: Callable[[damage.Tensors, dict[str, str]], None]
) -> None:
    run = Run(tmp_path)
    (file,) = run.add().glob("*.safetensors")
    tensors = damage.read_tensors(file)
    content = file.read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    sums = header["__metadata__"]
    harm(tensors, sums)
    damage.write_tensors(file, tensors, metadata=sums)

    assert refusal_of(run, 1).reason is Reason.CHECKPOINT_MALFORMED


def test_a_tensor_that_the_base_lacks_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add()
    shutil.rmtree(run.full(0))
    tensors = dict(run.tensors[0])
    tensors["other"] = tensors.pop("odd")
    write_full(run.full(0), tensors)
    refusal = refusal_of(run, 1)

    assert refusal.reason is Reason.DELTA_MISMATCH
    assert "'odd'" in refusal.message


def test_weights_that_the_index_does_not_name_are_ambiguous(tmp_path: Path) -> None:
    run = Run(tmp_path)
    damage.write_tensors(run.add() / "model.safetensors", run.tensors[1])

    assert refusal_of(run, 1).reason is Reason.CHECKPOINT_AMBIGUOUS


@pytest.mark.parametrize("encoding", ["xor", "overwrite"])
@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
def test_a_new_value_that_is_not_finite_is_refused_as_in_the_full_version(
    tmp_path: Path, encoding: str, value: float
) -> None:
    run = Run(tmp_path)
    tensors = dict(run.tensors[0])
    dtype, shape, content = tensors["odd"]
    tensors["odd"] = (dtype, shape, damage.bfloat16(value) + content[2:])
    write_full(run.full(1), tensors)
    numbers = {"version": 1, "base_version": 0}
    write_delta(run.full(0), run.full(1), run.delta(1), encoding=encoding, **numbers)
    of_delta = refusal_of(run, 1)
    shutil.rmtree(run.delta(1))
    run.full(1).rename(run.delta(1))
    of_full = refusal_of(run, 1)

    assert of_delta.reason is of_full.reason is Reason.CHECKPOINT_NOT_FINITE
    assert "'odd'" in of_delta.message
    assert of_delta.message == of_full.message


def test_digests_of_two_deltas_that_do_not_fit_are_refused_before_a_byte_is_read(
    tmp_path: Path,
) -> None:
    run = Run(tmp_path)
    run.add(result_digest=digest_of(run.full(0)))
    run.add(base_digest="sha256:" + "1" * 64, result_digest="sha256:" + "2" * 64)

    assert refusal_of(run, 2).reason is Reason.DELTA_MISMATCH


def test_a_result_without_room_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.add()
    checkpoint = opened(run, 1)
    refusal = refusal_from(
        checkpoint.read_in,
        own_pass({}),
        budget=checkpoint.size_bytes - 1,
        check_cancelled=nothing,
    )
    assert refusal.reason is Reason.NOT_AVAILABLE
    checkpoint.close()
