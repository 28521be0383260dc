"""An applier of deltas, written from the form alone: it shares no code with the writer or the worker."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import xxhash
import zstandard

INDEX = "model.safetensors.index.json"


def read_file(file: Path) -> tuple[dict[str, Any], dict[str, bytes], dict[str, str]]:
    """Tensor → its entry in the header, tensor → its bytes, and the metadata of a safetensors file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    notes, data = header.pop("__metadata__", {}), content[8 + length :]
    return header, {name: data[slice(*e["data_offsets"])] for name, e in header.items()}, notes


def read_tensors(directory: Path) -> dict[str, bytes]:
    """Tensor → its bytes, of all weight files of a directory."""
    found: dict[str, bytes] = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= read_file(file)[1]
    return found


def metadata(directory: Path) -> dict[str, str]:
    """The metadata of an index; empty for a full checkpoint in one file."""
    file = directory / INDEX
    return dict(json.loads(file.read_text())["metadata"]) if file.exists() else {}


def apply(base: dict[str, bytes], directory: Path) -> dict[str, bytes]:
    """The tensors that a delta makes from those of its base."""
    index = json.loads((directory / INDEX).read_text())
    notes, places = index["metadata"], index["weight_map"]
    assert (notes["compression_format"], notes["checksum_format"]) == ("zstd", "xxh3-128")
    files = {path.name for path in directory.iterdir()} - {INDEX}
    assert (
        files
        == set(places.values())
        == {f"model-{n:05}-of-{len(files):05}.safetensors" for n in range(len(files))}
    )
    result = dict(base)
    for file in files:
        header, frames, checksums = read_file(directory / file)
        assert frames.keys() == checksums.keys() == {n for n, f in places.items() if f == file}
        for name, frame in frames.items():
            assert header[name]["dtype"] == "U8"
            assert header[name]["shape"] == [len(frame)]
            size = zstandard.get_frame_parameters(frame).content_size
            content = zstandard.ZstdDecompressor().decompress(frame)
            assert size == len(content)
            new = _changed(base[name], content, notes["delta_encoding"])
            assert xxhash.xxh3_128(new).hexdigest() == checksums[name]
            assert new != base[name]
            result[name] = new
    return result


def _changed(old: bytes, content: bytes, encoding: str) -> bytes:
    new = bytearray(old)
    if encoding == "xor":
        assert len(content) == len(old)
        return bytes(a ^ b for a, b in zip(old, content, strict=True))
    assert encoding == "overwrite"
    (count,) = struct.unpack_from("<I", content)
    positions = struct.unpack_from(f"<{count}I", content, 4)
    values = content[4 + 4 * count :]
    assert len(values) == count
    assert list(positions) == sorted(set(positions))
    for position, value in zip(positions, values, strict=True):
        assert new[position] != value
        new[position] = value
    return bytes(new)
