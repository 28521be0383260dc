"""Two versions of a model as large as Qwen3-0.6B, and the second one as the delta that a trainer writes."""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rlfleet.deltas.between import write_between

WEIGHTS = "model.safetensors"
_HIDDEN, _INNER, _HEADS, _KEYS, _WORDS = 1024, 3072, 2048, 1024, 151_936
_SEED = 73
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": _HIDDEN,
    "intermediate_size": _INNER,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": _WORDS,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "dtype": "bfloat16",
}
"""Of an engine that loads the versions. Llama's layers have no tensors of Qwen3's besides these."""
Elements = npt.NDArray[np.uint16]


def write(folder: Path, *, changed_share: float, layers: int) -> dict[str, int]:
    """Write `base`, `full` and `delta` below a folder; return the bytes of each.

    Args:
        folder: An existing directory.
        changed_share: Share of the elements that differ between the versions, 0 to 1.
        layers: The number of layers.
    """
    model = dict(shapes(layers))
    old, new = np.random.default_rng(_SEED), np.random.default_rng(_SEED)
    chosen = np.random.default_rng(_SEED + 1)
    for name in ("base", "full"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(
            json.dumps(_CONFIG | {"num_hidden_layers": layers})
        )
    _write(folder / "base" / WEIGHTS, model, lambda count: _values(old, count).tobytes())

    def next_version(count: int) -> bytes:
        return _changed(_values(new, count), chosen, changed_share).tobytes()

    _write(folder / "full" / WEIGHTS, model, next_version)
    write_delta(folder)
    return {
        name: sum(file.stat().st_size for file in (folder / name).glob("*.safetensors"))
        for name in ("base", "full", "delta")
    }


def write_delta(folder: Path) -> None:
    """Write `delta` below a folder that has `base` and `full`."""
    names = {"version": "1", "base_version": "0"}
    write_between(
        folder / "base", folder / "full", folder / "delta", **names, begun=lambda _: lambda _: None
    )


def shapes(layers: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors of the model with this number of layers, and their shapes."""
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
        yield f"{layer}.post_attention_layernorm.weight", (_HIDDEN,)
    yield "model.norm.weight", (_HIDDEN,)


def _values(chosen: np.random.Generator, count: int) -> Elements:
    """Numbers in bfloat16 as weights have them: finite, small, of both signs."""
    bits = chosen.integers(0, 1 << 12, count, np.uint16)
    return bits | np.uint16(0x3C00) | (bits << np.uint16(15))


def _changed(values: Elements, chosen: np.random.Generator, share: float) -> Elements:
    """Change the last bits of some of the elements, as a step does."""
    where = np.flatnonzero(chosen.random(len(values), np.float32) < share)
    values[where] ^= chosen.integers(1, 4, len(where), np.uint16)
    return values


def _write(
    file: Path, shapes: Mapping[str, tuple[int, ...]], content: Callable[[int], bytes]
) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, shape in shapes.items():
        end = position + 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, end]}
        position = end
    text = json.dumps(header).encode()
    with file.open("wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            out.write(content(int(np.prod(shape))))
        out.flush()
        os.fsync(out.fileno())  # only clean pages leave the page cache


def write_plain(directory: Path, size: int, *, changed_share: float = 0.0) -> tuple[str, int]:
    """Write a checkpoint of about `size` bytes in one file; return its digest and the bytes of its file.

    `changed_share`: of elements that are others than without it.
    """
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    chosen, rows = np.random.default_rng(_SEED), max(1, size // (2 * _HIDDEN))
    others = np.random.default_rng(_SEED + 1)
    file = directory / WEIGHTS

    def content(count: int) -> bytes:
        return _changed(_values(chosen, count), others, changed_share).tobytes()

    _write(file, {"weight": (rows, _HIDDEN)}, content)
    hashes = {
        each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in directory.iterdir()
    }
    lines = "".join(f"{sha}  {name}\n" for name, sha in sorted(hashes.items()))
    return "sha256:" + hashlib.sha256(lines.encode()).hexdigest(), file.stat().st_size
