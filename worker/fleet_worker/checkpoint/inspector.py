"""The port for the checks of checkpoints that need transformers or all bytes; `inspection` implements it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.config_code import ConfigCode


class Inspector(Protocol):
    """The checks of checkpoints that need transformers or all bytes. They block: run them in a thread."""

    def read(
        self, checkpoint: Checkpoint, *, budget: int, check_cancelled: Callable[[], None]
    ) -> bool:
        """Read all bytes of a checkpoint once, digest them, and keep them within the budget.

        Returns:
            Whether the bytes are in memory.

        Errors:
            Refusal: a tensor has an infinity or a NaN, or would get one when it is cast.
        """

    def leave_memory(self, checkpoint: Checkpoint) -> None:
        """Free the memory of bytes that may be loaded again, then from the files.

        Errors:
            Refusal: the bytes cannot be digested now; they stay in memory.
        """

    def normalised_config(self, config: dict[str, Any], code: ConfigCode) -> dict[str, Any]:
        """Return the part of a configuration that may compute, with its defaults filled in."""

    def code_of(self, checkpoint: Checkpoint) -> ConfigCode:
        """Return the code that computes the model of a checkpoint."""
