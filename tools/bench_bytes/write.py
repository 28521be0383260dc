"""Two versions of a model as large as Qwen3-0.6B, and the second one as a delta; tensor by tensor."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_HIDDEN, _INNER, _HEADS, _KEYS, _WORDS = 1024, 3072, 2048, 1024, 151_936
_SEED = 73
Elements = npt.NDArray[np.uint16]


def write(folder: Path, *, changed_share: float, layers: int) -> dict[str, int]:
    """Write `base`, `full` and `delta` below a folder; return the bytes of each.

    Args:
        folder: An existing directory.
        changed_share: Share of the elements that differ between the versions, 0 to 1.
        layers: The number of layers.
    """
    shapes = dict(_shapes(layers))
    old, new = np.random.default_rng(_SEED), np.random.default_rng(_SEED)
    chosen = np.random.default_rng(_SEED + 1)
    for name in ("base", "full", "delta"):
        (folder / name).mkdir()
        if name != "delta":
            (folder / name / "config.json").write_text("{}")
    _write(folder / "base" / WEIGHTS, shapes, lambda _, count: _values(old, count).tobytes())
    frames: dict[str, bytes] = {}
    sums: dict[str, str] = {}

    def next_version(name: str, count: int) -> bytes:
        before = _values(new, count)
        after = before.copy()
        where = np.flatnonzero(chosen.random(count, np.float32) < changed_share)
        after[where] ^= chosen.integers(
            1, 4, len(where), np.uint16
        )  # the last bits, as after a step
        frames[name] = _frame(before, after)
        sums[name] = xxhash.xxh3_128(after.tobytes()).hexdigest()
        return after.tobytes()

    _write(folder / "full" / WEIGHTS, shapes, next_version)
    sizes = {name: (len(frame),) for name, frame in frames.items()}
    file = folder / "delta" / WEIGHTS
    _write(file, sizes, lambda name, _: frames[name], dtype="U8", notes=sums)
    metadata = {
        "version": "000001",
        "base_version": "000000",
        "delta_encoding": "overwrite",
        "compression_format": "zstd",
        "checksum_format": "xxh3-128",
    }
    index = {"metadata": metadata, "weight_map": dict.fromkeys(frames, WEIGHTS)}
    (folder / "delta" / INDEX).write_text(json.dumps(index))
    return {n: (folder / n / WEIGHTS).stat().st_size for n in ("base", "full", "delta")}


def _shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "model.embed_tokens.weight", (_WORDS, _HIDDEN)
    for number in range(layers):
        layer = f"model.layers.{number}"
        for part, rows, columns in (
            ("self_attn.q_proj", _HEADS, _HIDDEN),
            ("self_attn.k_proj", _KEYS, _HIDDEN),
            ("self_attn.v_proj", _KEYS, _HIDDEN),
            ("self_attn.o_proj", _HIDDEN, _HEADS),
            ("mlp.gate_proj", _INNER, _HIDDEN),
            ("mlp.up_proj", _INNER, _HIDDEN),
            ("mlp.down_proj", _HIDDEN, _INNER),
        ):
            yield f"{layer}.{part}.weight", (rows, columns)
        yield f"{layer}.input_layernorm.weight", (_HIDDEN,)
    yield "model.norm.weight", (_HIDDEN,)


def _values(chosen: np.random.Generator, count: int) -> Elements:
    """Numbers in bfloat16 as weights have them: finite, small, of both signs."""
    bits = chosen.integers(0, 1 << 12, count, np.uint16)
    return bits | np.uint16(0x3C00) | (bits << np.uint16(15))


def _frame(before: Elements, after: Elements) -> bytes:
    changed = np.flatnonzero(before.view(np.uint8) != after.view(np.uint8)).astype("<u4")
    values = after.view(np.uint8)[changed]
    content = struct.pack("<I", len(changed)) + changed.tobytes() + values.tobytes()
    return zstandard.ZstdCompressor(level=1).compress(content)


def _write(
    file: Path,
    shapes: Mapping[str, tuple[int, ...]],
    content: Callable[[str, int], bytes],
    *,
    dtype: str = "BF16",
    notes: dict[str, str] | None = None,
) -> None:
    header: dict[str, Any] = {"__metadata__": notes or {"format": "pt"}}
    position, item = 0, 1 if dtype == "U8" else 2
    for name, shape in shapes.items():
        end = position + int(np.prod(shape)) * item
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for name, shape in shapes.items():
            out.write(content(name, int(np.prod(shape))))
        out.flush()
        os.fsync(out.fileno())  # only clean pages leave the page cache
