"""The `Inspector` of the runtime, by torch and transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleet_worker.adapters import tensors
from fleet_worker.adapters.checkpoint import Checkpoint


class TorchInspector:
    """Finds out about checkpoints what takes torch and transformers."""

    def read(self, checkpoint: Checkpoint, *, budget: int, go_on: Callable[[], None]) -> bool:
        """Read all bytes once and refuse infinities and NaNs; see `Checkpoint.hold`."""
        return checkpoint.hold(budget=budget, go_on=go_on, look=tensors.look)

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The configuration with its defaults filled in."""
        return tensors.normalised_config(config)
