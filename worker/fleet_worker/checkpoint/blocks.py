"""Blocks of tensors: the unit in which bytes are checked, and two checkpoints are compared.

A block is a number of elements, not of bytes: a tensor has the same blocks in every type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from fleet_worker.checkpoint.format import TensorSpec
from rlfleet_resources.weight_files import DTYPES

BLOCK_ELEMENTS = 128 * 1024
"""In bfloat16 a block has 256 KiB, and fits into the processor's cache."""

ZeroBlocks = Mapping[str, frozenset[int]]
"""Tensor name → numbers of its blocks with only zeros. Tensors without such blocks are absent."""

Inspect = Callable[[TensorSpec, memoryview], bool]
"""Checks some whole elements of a tensor.

Returns whether any of them is not zero, and raises `Refusal` if they must not be loaded.
"""


def block_bytes(spec: TensorSpec) -> int:
    """Return the length of a tensor's blocks in bytes."""
    return BLOCK_ELEMENTS * DTYPES[spec.dtype].bits // 8


def blocks_of_zeros(
    spec: TensorSpec, content: memoryview, first: int, inspect: Inspect
) -> Iterator[int]:
    """Check some bytes of a tensor, which begin at a block. Yields the blocks with only zeros."""
    length = block_bytes(spec)
    for begin in range(0, len(content), length):
        if not inspect(spec, content[begin : begin + length]):
            yield (first - spec.begin + begin) // length


Part = tuple[TensorSpec, int, int]
"""A tensor, and begin and end in the file of its bytes in a piece."""


def pieces_of(
    specs: Sequence[TensorSpec], size: int, *, most_bytes: int
) -> Iterator[tuple[int, int, list[Part]]]:
    """Cut a file into pieces, so that each block of a tensor is in one piece.

    Args:
        specs: In the order of their bytes, without gaps up to the end of the file.
        size: Size of the file in bytes.
        most_bytes: Length of a piece, at least one block.

    Returns:
        Begin and end in the file, and the tensors in between.
    """
    begin, parts = 0, list[Part]()
    end = specs[0].begin if specs else size
    # The header, in pieces too.
    while end - begin > most_bytes:
        yield begin, begin + most_bytes, []
        begin += most_bytes
    for spec in specs:
        first = spec.begin
        while first < spec.end:
            room = most_bytes - (first - begin)
            whole_blocks = room // block_bytes(spec) * block_bytes(spec)
            last = spec.end if spec.end - first <= room else first + whole_blocks
            if last > first:
                parts.append((spec, first, last))
                first = last
            if first < spec.end:  # the piece is full
                yield begin, first, parts
                begin, parts = first, []
        end = spec.end
    if end > begin or not specs:
        yield begin, end, parts


def blocks_between(specs: Sequence[TensorSpec], begin: int, end: int) -> ZeroBlocks:
    """Return the blocks of tensors that overlap the part of a file from `begin` up to, without, `end`."""
    return {
        spec.name: frozenset(
            range(
                (max(begin, spec.begin) - spec.begin) // block_bytes(spec),
                (min(end, spec.end) - spec.begin - 1) // block_bytes(spec) + 1,
            )
        )
        for spec in specs
        if spec.begin < end and begin < spec.end
    }
