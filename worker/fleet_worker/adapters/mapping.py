"""Tensors over mapped bytes, without a copy."""

from __future__ import annotations

import mmap
import warnings

import torch


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Map a whole file for reading."""
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def tensor_over(content: mmap.mmap, dtype: torch.dtype, *, offset: int, count: int) -> torch.Tensor:
    """A flat tensor over bytes of a mapping; it keeps the mapping open.

    Args:
        content: What `mapped` returned.
        dtype: Of the elements.
        offset: First byte.
        count: Number of elements.
    """
    with warnings.catch_warnings():
        # torch warns that nobody may write to it; nobody does.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(content, dtype=dtype, offset=offset, count=count)
