"""The difference of two tensors of the same size, as a delta has it: one frame of zstd.

`overwrite`: u32 count of changed bytes, their u32 positions, then the new bytes. `xor`: new ^ old over all bytes.
All numbers are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import zstandard

from rlfleet.deltas.tensors import Bytes

LARGEST_POSITION = 2**32 - 1
_CHUNK = 1 << 20
"""Bytes that are compared at once: they stay in the processor's cache. A multiple of every element."""
_LEVEL = 1
_WORD_BYTES = 8
Positions = npt.NDArray[np.int64]


class Encoding(StrEnum):
    """How a difference is written."""

    OVERWRITE = "overwrite"
    XOR = "xor"


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes of a tensor.

    Fields:
        frame: the encoded difference.
        changed_elements: how many elements have another bit.
    """

    frame: bytes
    changed_elements: int


def encode(old: Bytes, new: Bytes, encoding: Encoding, item_bytes: int) -> Difference | None:
    """The difference of a tensor; None if no bit has changed.

    Args:
        old: Its bytes in the base.
        new: Its new bytes, as many; at most 4 GiB for `overwrite`.
        encoding: How to write the difference.
        item_bytes: Bytes of an element: 1, 2, 4, 8 or 16.
    """
    positions, changed_elements = [], 0
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    xor = compressor.compressobj(size=len(new)) if encoding is Encoding.XOR else None
    parts = []
    for begin in range(0, len(new), _CHUNK):
        before, after = old[begin : begin + _CHUNK], new[begin : begin + _CHUNK]
        found = _changed_bytes(before, after)
        changed_elements += _elements(found, item_bytes)
        if xor is not None:
            parts.append(xor.compress((before ^ after).data))
        elif len(found):
            positions.append((found + begin).astype("<u4"))
    if not changed_elements:
        return None
    if xor is not None:
        return Difference(b"".join((*parts, xor.flush())), changed_elements)
    every = np.concatenate(positions)
    count = np.array(len(every), "<u4")
    content = b"".join((count.tobytes(), every.tobytes(), new[every].tobytes()))
    return Difference(compressor.compress(content), changed_elements)


def _changed_bytes(old: Bytes, new: Bytes) -> Positions:
    """The positions of bytes that differ, in order. Whole words are compared first, since most are equal."""
    whole = len(old) - len(old) % _WORD_BYTES
    before, after = old[:whole].view(np.uint64), new[:whole].view(np.uint64)
    words = np.flatnonzero(before != after)
    rows, columns = (before[words] ^ after[words]).view(np.uint8).reshape(-1, _WORD_BYTES).nonzero()
    rest = np.flatnonzero(old[whole:] != new[whole:]) + whole
    return np.concatenate((words[rows] * _WORD_BYTES + columns, rest))


def _elements(changed_bytes: Positions, item_bytes: int) -> int:
    """How many elements have changed bytes, of which the positions are given in order."""
    if not len(changed_bytes):
        return 0
    return int(np.count_nonzero(np.diff(changed_bytes // item_bytes))) + 1
