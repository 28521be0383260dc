"""LoRA adapters as PEFT writes them, made without PEFT."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import damage

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

QWEN_MODULES = {
    f"model.layers.{layer}.self_attn.{name}": shape
    for layer in range(2)
    for name, shape in {"q_proj": (128, 64), "v_proj": (64, 64), "o_proj": (64, 128)}.items()
}
"""Module → [outputs, inputs] of the tiny Qwen3 of `tools/checkpoints.py`."""
TINY_MODULES = {"embed": (2, 4)}
"""The same of `tests.support.tiny`."""


def write_adapter(
    directory: Path,
    *,
    seed: int,
    modules: Mapping[str, tuple[int, int]] = QWEN_MODULES,
    rank: int = 8,
    scale: float = 0.5,
    **config: Any,
) -> Path:
    """Write an adapter; every seed is another one.

    Args:
        directory: Target, made if need be.
        seed: Chooses the weights.
        modules: The modules that it adapts, with their shapes.
        rank: The rank of all matrices.
        scale: Size of its numbers: 0 changes nothing, 0.5 makes another policy of the tiny model.
        config: Keys of `adapter_config.json` that differ from a plain LoRA's.
    """
    directory.mkdir(parents=True, exist_ok=True)
    plain = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": sorted({name.rpartition(".")[2] for name in modules}),
        "bias": "none",
    }
    (directory / CONFIG_FILE).write_text(json.dumps(plain | config))
    chance = random.Random(seed)  # noqa: S311 - weights, no secrets
    tensors: damage.Tensors = {}
    for module, (outputs, inputs) in modules.items():
        for side, shape in (("A", [rank, inputs]), ("B", [outputs, rank])):
            count = shape[0] * shape[1]
            values = [chance.uniform(-scale, scale) for _ in range(count)]
            data = struct.pack(f"<{count}f", *values)
            tensors[f"base_model.model.{module}.lora_{side}.weight"] = ("F32", shape, data)
    damage.write_tensors(directory / WEIGHTS_FILE, tensors)
    return directory
