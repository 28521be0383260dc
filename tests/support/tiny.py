"""Checkpoints without a model: two small tensors, enough for everything that is not an engine."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support import damage

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import Roots
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, StageRules
from fleet_worker.lifecycle.weights import Weights
from fleet_worker.protocol import Source

BASE_DIGEST = "a48e89b62b4d"
"""First digits of the digest of the weights that the engine of a unit test starts on."""

CONFIG = {"architectures": ["Tiny"], "model_type": "tiny", "hidden_size": 4}


def write_tiny(directory: Path, value: float = 1.0, **config: Any) -> Path:
    """Write a checkpoint whose tensors all hold one value."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    tensors: damage.Tensors = {
        "embed.weight": ("BF16", [2, 4], damage.bfloat16(value) * 8),
        "head.weight": ("BF16", [4], damage.bfloat16(value) * 4),
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
        before_finite: called before the bytes are read, with `check_cancelled`; tests wait in it.
    """

    before_finite: Callable[[Callable[[], None]], None] = field(
        default=lambda check_cancelled: check_cancelled()
    )
    checked: list[str] = field(default_factory=list)

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        self.before_finite(check_cancelled)
        self.checked.append(checkpoint.path)
        return checkpoint.read_all(
            budget=budget, check_cancelled=check_cancelled, inspect=tiny_inspect
        )

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        return config


def tiny_rules(
    root: Path, inspector: TinyInspector | None = None, *, budget_bytes: int = 1 << 20
) -> tuple[StageRules, Weights]:
    """Rules for staging below a root, and the weights `base` that the engine started on."""
    model = write_tiny(root / "base", 0.0)
    checkpoint = open_checkpoint(str(model), None)
    inspector = inspector or TinyInspector()
    rules = StageRules(
        Roots([root]), Reference.of(checkpoint, inspector), inspector, budget_bytes=budget_bytes
    )
    return rules, Weights(
        "base", Source(path=str(model)), checkpoint.digest(lambda: None), checkpoint
    )
