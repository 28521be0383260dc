"""Read the bytes of an open checkpoint, and refuse what the running model must not load."""

from __future__ import annotations

from collections.abc import Callable

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.identity import check_digest
from fleet_worker.checkpoint.reference import StageRules


def read_accepted(
    checkpoint: Checkpoint,
    rules: StageRules,
    *,
    digest: str | None,
    budget: int,
    check_cancelled: Callable[[], None],
) -> tuple[bool, str]:
    """Read and check the bytes of a checkpoint whose tensors fit the running model. Blocks.

    Args:
        checkpoint: The result of `open_fitting`.
        rules: Limits and checks.
        digest: The expected digest. It makes the checks for missing parts unnecessary.
        budget: Largest number of bytes to keep in memory.
        check_cancelled: Raises to cancel.

    Returns:
        Whether the bytes are in memory, and their digest.

    Errors:
        Refusal: any of the checkpoint reasons. The files stay open.
    """
    if digest is None:
        rules.reference.check_written(checkpoint)
    in_memory = rules.inspector.read(checkpoint, budget=budget, check_cancelled=check_cancelled)
    found = checkpoint.digest(check_cancelled)
    check_digest(digest, found, "the files")
    if digest is None:
        rules.reference.check_filled(checkpoint)
    checkpoint.check_same_on_disk(rules.roots)
    return in_memory, found
