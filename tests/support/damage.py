"""Editing safetensors files byte by byte: checkpoints as bad as trainers and disks make them."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

WEIGHTS = "model.safetensors"

Tensors = dict[str, tuple[str, list[int], bytes]]
"""Name → (type, shape, bytes)."""


def read_tensors(file: Path) -> Tensors:
    """All tensors of a file."""
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    header.pop("__metadata__", None)
    data = content[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write_tensors(file: Path, tensors: Tensors, *, metadata: dict[str, str] | None = None) -> None:
    """Write a file that holds these tensors, and texts next to them."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        end = position + len(data)
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, end]}
        position = end
    encoded = json.dumps(header).encode()
    body = b"".join(data for _, _, data in tensors.values())
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + body)


def edit_tensors(checkpoint: Path, edit: Callable[[Tensors], None]) -> None:
    """Change the tensors of a checkpoint in one file."""
    file = checkpoint / WEIGHTS
    tensors = read_tensors(file)
    edit(tensors)
    write_tensors(file, tensors)


def edit_config(checkpoint: Path, **changes: Any) -> None:
    """Change keys of config.json."""
    file = checkpoint / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def make_overflow(checkpoint: Path) -> None:
    """Finite numbers, good shapes, and infinite logits: nothing but a forward pass can tell."""
    tensors = read_tensors(checkpoint / WEIGHTS)
    for name in ("lm_head.weight", "model.norm.weight"):
        fill(tensors, name, 3e38)
    write_tensors(checkpoint / WEIGHTS, tensors)


def bfloat16(value: float) -> bytes:
    """One number in bfloat16."""
    return struct.pack("<f", value)[2:]


def fill(tensors: Tensors, name: str, value: float, *, first: int | None = None) -> None:
    """Set all elements of a bfloat16 tensor, or only the first few."""
    dtype, shape, data = tensors[name]
    count = len(data) // 2 if first is None else first
    tensors[name] = (dtype, shape, bfloat16(value) * count + data[2 * count :])
