"""Tensors over bytes that are already in memory, without a copy."""

from __future__ import annotations

import mmap
import warnings

import torch


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Map a whole file for reading.

    Only one that nobody can cut off, which is to say sealed bytes in memory: reading a page of a
    mapping that lies behind the end of its file ends the process (SIGBUS).
    """
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def tensor_over(
    content: mmap.mmap | memoryview, dtype: torch.dtype, *, offset: int, count: int
) -> torch.Tensor:
    """A flat tensor over bytes; it keeps a mapping open.

    Args:
        content: What `mapped` returned, or some of a buffer.
        dtype: Of the elements.
        offset: First byte.
        count: Number of elements.
    """
    with warnings.catch_warnings():
        # torch warns that nobody may write to it; nobody does.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(content, dtype=dtype, offset=offset, count=count)
