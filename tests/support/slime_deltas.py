"""Deltas as slime and miles write them, made of two full checkpoints: the writer of tests.

It follows the description of the form, and shares no line with what reads deltas.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import xxhash
import zstandard
from tests.support import damage

INDEX = "model.safetensors.index.json"

CHECKSUMS: dict[str, Callable[[bytes], str]] = {
    "xxh3-128": lambda content: xxhash.xxh3_128(content).hexdigest(),
    "blake3": lambda content: blake3.blake3(content).hexdigest(),
    "adler32": lambda content: f"{zlib.adler32(content):08x}",
}


def tensors_of(directory: Path) -> damage.Tensors:
    """All tensors of a full checkpoint."""
    found: damage.Tensors = {}
    for file in sorted(directory.glob("*.safetensors")):
        found |= damage.read_tensors(file)
    return found


def encoded(old: bytes, new: bytes, encoding: str) -> bytes:
    """The difference of a tensor before it is compressed."""
    before, after = np.frombuffer(old, np.uint8), np.frombuffer(new, np.uint8)
    if encoding == "xor":
        return (before ^ after).tobytes()
    positions = np.flatnonzero(before != after).astype("<u4")
    return overwrite(positions, after[positions].tobytes())


def overwrite(positions: Any, values: bytes, *, count: int | None = None) -> bytes:
    """An overwrite with these positions; `count` is what it says instead of their number."""
    given = np.asarray(positions, "<u4")
    return struct.pack("<I", len(given) if count is None else count) + given.tobytes() + values


def write_delta(
    base: Path,
    new: Path,
    out: Path,
    *,
    version: str | int,
    base_version: str | int,
    encoding: str = "overwrite",
    checksums: str = "xxh3-128",
    files: int = 1,
    frames: Mapping[str, bytes] | None = None,
    **metadata: Any,
) -> Path:
    """Write the difference of two full checkpoints.

    Args:
        base, new: Directories of the checkpoints, with the same tensors.
        out: Directory of the delta.
        version, base_version: As its index says.
        encoding, checksums: Its form.
        files: The number of its files.
        frames: Changed tensor → its frame, instead of the right one.
        metadata: Further keys of its index. None leaves a key out.
    """
    old, after = tensors_of(base), tensors_of(new)
    changed = [name for name in after if after[name][2] != old[name][2]] + list(frames or ())
    changed = list(dict.fromkeys(changed))
    out.mkdir(parents=True)
    places: dict[str, str] = {}
    for number in range(files if changed else 0):
        file = f"model-{number:05d}-of-{files:05d}.safetensors"
        entries: damage.Tensors = {}
        sums: dict[str, str] = {}
        for name in changed[number::files]:
            difference = encoded(old[name][2], after[name][2], encoding)
            frame = zstandard.ZstdCompressor(level=1).compress(difference)
            frame = (frames or {}).get(name, frame)
            entries[name] = ("U8", [len(frame)], frame)
            sums[name] = CHECKSUMS[checksums](after[name][2])
            places[name] = file
        damage.write_tensors(out / file, entries, metadata=sums)
    described = {
        "version": version,
        "base_version": base_version,
        "delta_encoding": encoding,
        "compression_format": "zstd",
        "checksum_format": checksums,
        **metadata,
    }
    index = {
        "metadata": {key: value for key, value in described.items() if value is not None},
        "weight_map": places,
    }
    (out / INDEX).write_text(json.dumps(index))
    return out
