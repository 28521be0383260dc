"""Checkpoints without a model: two small tensors, enough for everything that is not an engine."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import damage

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.config_code import ConfigCode
from fleet_worker.checkpoint.configuration import used
from fleet_worker.checkpoint.delta_chain import FirstBase
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.keeping import OwnPass
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.protocol import Source

BASE_DIGEST = "a48e89b62b4d"
"""First digits of the digest of the weights that the engine of a unit test starts on."""

CONFIG = {"architectures": ["Tiny"], "model_type": "tiny", "hidden_size": 4}


def write_tiny(
    directory: Path, value: float = 1.0, *, in_float32: bool = False, **config: Any
) -> Path:
    """Write a checkpoint whose tensors all hold one value, in bfloat16 or in float32."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    dtype, number = "BF16", damage.bfloat16(value)
    if in_float32:
        dtype, number = "F32", struct.pack("<f", value)
    tensors: damage.Tensors = {
        "embed.weight": (dtype, [2, 4], number * 8),
        "head.weight": (dtype, [4], number * 4),
    }
    damage.write_tensors(directory / damage.WEIGHTS, tensors)
    return directory


def tiny_inspect(_spec: TensorSpec, block: memoryview) -> bool:
    """Whether a block holds anything but zeros."""
    return any(block)


@dataclass
class TinyInspector:
    """Follows the `Inspector` port without torch.

    Fields:
        code: the code of the model; it could read every key.
        before_finite: called before the bytes are read, with `check_cancelled`; tests wait in it.
    """

    before_finite: Callable[[Callable[[], None]], None] = field(
        default=lambda check_cancelled: check_cancelled()
    )
    checked: list[str] = field(default_factory=list)
    code: ConfigCode = field(default_factory=ConfigCode)

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        self.before_finite(check_cancelled)
        self.checked.append(checkpoint.path)
        return checkpoint.read_all(
            budget=budget, check_cancelled=check_cancelled, inspect=tiny_inspect
        )

    def leave_memory(self, checkpoint: Checkpoint) -> None:
        checkpoint.leave_memory(OwnPass())

    def normalised_config(self, config: dict[str, Any], code: ConfigCode) -> dict[str, Any]:
        return used(config, code).config

    def code_of(self, checkpoint: Checkpoint) -> ConfigCode:
        return self.code


def tiny_rules(
    root: Path, inspector: TinyInspector | None = None, *, budget_bytes: int = 1 << 20
) -> tuple[StageRules, Weights]:
    """Rules for staging below a root, and the weights `base` that the engine started on."""
    model = write_tiny(root / "base", 0.0)
    checkpoint = open_checkpoint(str(model), None)
    inspector = inspector or TinyInspector()
    digest = checkpoint.digest(lambda: None)
    rules = StageRules(
        Roots([root]),
        Reference.of(checkpoint, inspector),
        inspector,
        budget_bytes=budget_bytes,
        first_base=FirstBase(str(model), "base", digest),
    )
    return rules, Weights("base", Source(path=str(model)), digest, checkpoint)
