"""The `Inspector` of the runtime, by torch and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_worker.adapters import tensors
from fleet_worker.adapters.checkpoint import Checkpoint


class TorchInspector:
    """Finds out about checkpoints what takes torch and transformers."""

    def check_finite(self, checkpoint: Checkpoint, go_on: Callable[[], None]) -> None:
        """Raise `Refusal` if a tensor holds an infinity or a NaN."""
        tensors.check_finite(checkpoint, go_on)

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with its defaults filled in."""
        return tensors.normalised_config(config)
