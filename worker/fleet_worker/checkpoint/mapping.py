"""Tensors over bytes in memory, without a copy."""

from __future__ import annotations

import mmap
import warnings

import torch

from fleet_worker.checkpoint.memory import is_sealed


def mapped(descriptor: int, size: int) -> mmap.mmap:
    """Map sealed bytes in memory for reading, as a whole.

    If a mapped file shrinks, reading behind its end ends the process (SIGBUS).

    Errors:
        ValueError: The bytes are not sealed.
    """
    if not is_sealed(descriptor):
        raise ValueError("the bytes are not sealed in memory, and there are no digests of them")
    return mmap.mmap(descriptor, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)


def tensor_over(
    content: mmap.mmap | memoryview | bytearray, dtype: torch.dtype, *, offset: int, count: int
) -> torch.Tensor:
    """Return a flat tensor over bytes. It keeps the mapping open.

    `content`: a result of `mapped`, or a part of a buffer. `offset`: of the first byte.
    """
    with warnings.catch_warnings():
        # torch warns that the tensor is read-only, and the worker only reads it.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(content, dtype=dtype, offset=offset, count=count)
