"""The difference of two tensors of the same size, as a delta has it: one frame of zstd.

`overwrite`: u32 count of changed bytes, their u32 positions, then the new bytes. `xor`: new ^ old over all bytes.
All numbers are little-endian.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import zstandard

from rlfleet.deltas.tensors import Bytes
from rlfleet_resources.weight_files import Encoding

LARGEST_POSITION = 2**32 - 1
_CHUNK = 1 << 20
"""Bytes that are compared at once: they stay in the processor's cache. A multiple of every element."""
_LEVEL = 1
_NUMBERS = (1, 2, 4, 8)
"""Bytes of the numbers of numpy. Elements of other sizes count by bytes."""


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
        item_bytes: Bytes of an element.
    """
    positions, changed_elements = [], 0
    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    xor = compressor.compressobj(size=len(new)) if encoding is Encoding.XOR else None
    parts = []
    element = np.dtype(f"u{item_bytes}" if item_bytes in _NUMBERS else "u1")
    for begin in range(0, len(new), _CHUNK):
        bits = old[begin : begin + _CHUNK] ^ new[begin : begin + _CHUNK]
        changed = int(np.count_nonzero(bits.view(element)))
        changed_elements += changed
        if xor is not None:
            parts.append(xor.compress(bits.data))
        elif changed:
            positions.append((np.flatnonzero(bits != 0) + begin).astype("<u4"))
    if not changed_elements:
        return None
    if xor is not None:
        return Difference(b"".join((*parts, xor.flush())), changed_elements)
    every = np.concatenate(positions)
    count = np.array(len(every), "<u4")
    content = b"".join((count.tobytes(), every.tobytes(), new[every].tobytes()))
    return Difference(compressor.compress(content), changed_elements)
