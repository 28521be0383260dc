"""Whether two tensors of a checkpoint have the same bytes."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.memory import MemoryFile

Pair = tuple[str, str]
"""Names of two tensors."""

_PIECE_BYTES = 2 * 1024 * 1024


def are_equal(
    pair: Pair,
    files: Sequence[OpenFile],
    specs: Mapping[str, Sequence[TensorSpec]],
    check_cancelled: Callable[[], None],
    *,
    held: Mapping[str, MemoryFile],
) -> bool:
    """Return whether two tensors are equal. Blocks.

    Args:
        pair: The tensors.
        files: The files of the checkpoint.
        specs: File name → its tensors.
        check_cancelled: Raises to cancel.
        held: File name → its bytes in memory. Others are read.

    Errors:
        Refusal: from the files and from `check_cancelled`.
    """
    where = {
        spec.name: (file, spec) for file in files for spec in specs[file.name] if spec.name in pair
    }
    (first, spec), (second, of_other) = (where[name] for name in pair)
    if spec.dtype != of_other.dtype:
        return False  # only if a load casts one of them, and no trainer ties tensors of two types

    def content(file: OpenFile, position: int, count: int) -> bytes:
        if (memory := held.get(file.name)) is not None:
            return os.pread(memory.descriptor, count, position)
        return file.read(position, count)

    length = spec.end - spec.begin
    for offset in range(0, length, _PIECE_BYTES):
        check_cancelled()
        count = min(_PIECE_BYTES, length - offset)
        piece = content(first, spec.begin + offset, count)
        if piece != content(second, of_other.begin + offset, count):
            return False
    return True
