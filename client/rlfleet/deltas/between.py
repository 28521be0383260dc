"""Write the difference of two full checkpoints in directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rlfleet.checkpoints import READABLE
from rlfleet.deltas.directories import new_directory
from rlfleet.deltas.passes import Progress
from rlfleet.deltas.sources import FromDirectory
from rlfleet.deltas.writing import Delta, write_delta
from rlfleet.errors import UnusableWeights


def write_between(
    base: Path,
    new: Path,
    out: Path,
    *,
    version: str,
    base_version: str,
    begun: Callable[[int], Progress],
) -> Delta:
    """Write a delta.

    Args:
        base: The full checkpoint of the version before.
        new: The full new checkpoint.
        out: The directory to write.
        version: The new version.
        base_version: The version before.
        begun: Takes the bytes of the checkpoint, and returns what takes the progress.

    Errors: FileExistsError, UnusableWeights, NotWritten.
    """
    with FromDirectory(base) as old, FromDirectory(new) as source:
        if differs := old.layout.difference(source.layout):
            raise UnusableWeights(
                f"{new} has other files than {base}: {differs}; copy it to {out}, and publish it in full"
            )
        progress = begun(source.layout.size)
        with new_directory(out, READABLE) as folder:
            return write_delta(
                old, source, folder, version=version, base_version=base_version, progress=progress
            )
