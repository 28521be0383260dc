"""What the parameters of a model are recognised by: a number that follows from all of their bits.

For weights that come without files and without a name. Every worker that has received the same
computes the same, whenever it started; another order of the same values gives another number.
It is made to tell weights apart, not to withstand somebody who looks for two that agree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

# 32 MiB at a time once widened: nothing beside a model, and enough to keep a GPU busy.
_ELEMENTS_AT_ONCE = 1 << 22
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# The multipliers of SplitMix64 (Steele, Lea and Flood, 2014), as signed numbers.
_PLACE = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def checksum_of(parameters: Iterable[tuple[str, torch.Tensor]]) -> str:
    """The checksum of some named tensors, on whatever device they lie; in hexadecimal digits.

    Args:
        parameters: Name and tensor, of any shape and of any type of 1 to 8 bytes.
    """
    digest = hashlib.sha256()
    sums = [(name, _sum_of(tensor)) for name, tensor in sorted(parameters, key=lambda p: p[0])]
    for name, number in sums:
        digest.update(f"{name} {number.item()}\n".encode())
    return digest.hexdigest()


def _sum_of(tensor: torch.Tensor) -> torch.Tensor:
    """Of all elements, each mixed with its place; whole numbers, so that no order matters."""
    flat = tensor.detach().contiguous().view(-1).view(_BITS[tensor.element_size()])
    total = torch.zeros((), dtype=torch.int64, device=flat.device)
    for begin in range(0, flat.numel(), _ELEMENTS_AT_ONCE):
        mixed = flat[begin : begin + _ELEMENTS_AT_ONCE].to(torch.int64)
        places = torch.arange(begin + 1, begin + 1 + mixed.numel(), device=flat.device)
        mixed += places.mul_(_PLACE)
        mixed.mul_(_FIRST).bitwise_xor_(mixed >> 27)
        mixed.mul_(_SECOND).bitwise_xor_(mixed >> 31)
        total += mixed.sum()
    return total
