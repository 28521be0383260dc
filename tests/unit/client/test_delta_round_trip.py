"""Deltas that a trainer writes, applied by code that knows only their form."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.support.deltas import apply, metadata, read_file, read_tensors

from fleet_worker.process.manifest import digest_in
from rlfleet.deltas import encoding as encodings
from rlfleet.deltas import writing
from rlfleet.deltas.directories import new_directory
from rlfleet.deltas.encoding import encode
from rlfleet.deltas.sources import FromDirectory, FromStateDict
from rlfleet.deltas.writing import write_delta, write_full
from rlfleet_resources.weight_files import Encoding

TYPES = (np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_, np.complex64)
State = dict[str, Any]


def quietly(_: int) -> None:
    """No progress."""


@pytest.fixture(scope="module")
def base_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the other files of a checkpoint."""
    folder = tmp_path_factory.mktemp("base")
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    (folder / "tokenizer.json").write_text("{}")
    return folder


def save(state: State, folder: Path, config_from: Path) -> str:
    """Write a full checkpoint. Returns its digest."""
    folder.mkdir()
    return write_full(FromStateDict(state, config_from), folder, None, quietly)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[State, State]:
    """Two state dicts with tensors of the same types and shapes, of any bits."""
    old: State = {}
    new: State = {}
    for number in range(draw(st.integers(1, 4))):
        shape = draw(arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5))
        dtype = np.dtype(draw(st.sampled_from(TYPES)))
        size = int(np.prod(shape)) * dtype.itemsize
        before = draw(st.binary(min_size=size, max_size=size))
        after = bytearray(before)
        for position in draw(st.sets(st.integers(0, size - 1))) if size else ():
            after[position] = draw(st.integers(0, 255))
        for state, bits in ((old, before), (new, bytes(after))):
            state[f"t{number}"] = np.frombuffer(bits, dtype).reshape(shape)
    return old, new


@given(
    pair=pairs(), encoding=st.sampled_from(Encoding), file_bytes=st.sampled_from([1, 40, 1 << 30])
)
@settings(max_examples=80, deadline=None)
def test_a_delta_applied_to_its_base_gives_the_new_weights_and_their_digest(
    base_directory, pair, encoding, file_bytes
):
    old, new = pair
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as made:
        patch.setattr(writing, "smaller_encoding", lambda *_: encoding)
        patch.setattr(writing, "_FILE_BYTES", file_bytes)
        patch.setattr(encodings, "_CHUNK", 32)
        folder = Path(made)
        digests = [
            save(state, folder / name, base_directory)
            for name, state in (("step_1", old), ("step_2", new))
        ]
        with (
            FromDirectory(folder / "step_1") as base,
            FromDirectory(folder / "step_2") as source,
            new_directory(folder / "delta_2", None) as out,
        ):
            done = write_delta(base, source, out, version="2", base_version="1", progress=quietly)

        assert apply(read_tensors(folder / "step_1"), folder / "delta_2") == read_tensors(
            folder / "step_2"
        )
        assert [done.base_digest, done.result_digest] == digests
        assert digests == [digest_in(str(folder / name)) for name in ("step_1", "step_2")]
        assert metadata(folder / "delta_2") == {
            "version": "2",
            "base_version": "1",
            "delta_encoding": encoding.value,
            "compression_format": "zstd",
            "checksum_format": "xxh3-128",
            "base_digest": digests[0],
            "result_digest": digests[1],
        }
        differing = sum(
            int((bits_of(old[n]) != bits_of(new[n])).any(axis=1).sum()) for n in old if old[n].size
        )
        elements = sum(tensor.size for tensor in old.values())
        assert done.changed_share == pytest.approx(differing / elements if elements else 0)
        assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == []


def bits_of(tensor: Any) -> Any:
    """The bytes of each element, in a row."""
    return np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).reshape(tensor.size, -1)


@pytest.mark.parametrize("encoding", Encoding)
def test_values_that_compare_as_different_or_equal_are_compared_by_their_bits(encoding):
    nans = np.array([np.nan, 0.0, 1.0], np.float32).view(np.uint8)
    zeros = np.array([np.nan, -0.0, 1.0], np.float32).view(np.uint8)

    assert encode(nans, nans.copy(), encoding, 4) is None
    found = encode(nans, zeros, encoding, 4)
    assert found is not None
    assert found.changed_elements == 1


def test_the_smaller_encoding_is_chosen(base_directory):
    random = np.random.default_rng(7)
    old = random.integers(0, 2**16, 200_000, dtype=np.uint16)
    few, every = old.copy(), old ^ np.uint16(1)
    few[7] ^= 257

    def chosen(new: Any) -> Encoding:
        sources = [FromStateDict({"a": one}, base_directory) for one in (old, new)]
        return writing.smaller_encoding(*sources)

    assert chosen(few) is Encoding.OVERWRITE
    assert chosen(every) is Encoding.XOR


def test_positions_beyond_32_bits_are_never_written(base_directory, monkeypatch):
    old = np.zeros(100, np.uint8)
    new = old.copy()
    new[3] = 1
    sources = [FromStateDict({"a": one}, base_directory) for one in (old, new)]
    assert writing.smaller_encoding(*sources) is Encoding.OVERWRITE

    monkeypatch.setattr(writing, "LARGEST_POSITION", 98)

    assert writing.smaller_encoding(*sources) is Encoding.XOR


def test_a_large_state_dict_has_several_files_and_the_digest_of_a_worker(
    base_directory, tmp_path, monkeypatch
):
    monkeypatch.setattr("rlfleet.deltas.layout._SHARD_BYTES", 10)
    state = {f"t{n}": np.full(2, n, np.float32) for n in range(3)}

    digest = save(state, tmp_path / "step_1", base_directory)

    assert digest == digest_in(str(tmp_path / "step_1"))
    assert sorted(path.name for path in (tmp_path / "step_1").glob("*.safetensors")) == [
        f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)
    ]
    assert read_tensors(tmp_path / "step_1") == {n: t.tobytes() for n, t in state.items()}
    assert (tmp_path / "step_1/tokenizer.json").exists()


def test_each_tensor_of_a_written_file_begins_at_a_multiple_of_its_elements(
    base_directory, tmp_path
):
    state = {"a": np.zeros(3, np.uint8), "b": np.zeros(3, np.float64), "c": np.zeros(3, np.float16)}
    save(state, tmp_path / "step_1", base_directory)
    header, _, notes = read_file(tmp_path / "step_1/model.safetensors")

    starts = {name: entry["data_offsets"][0] for name, entry in header.items()}
    assert {name: start % state[name].itemsize for name, start in starts.items()} == {
        "a": 0,
        "b": 0,
        "c": 0,
    }
    assert notes == {"format": "pt"}
