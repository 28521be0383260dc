"""Whether the elements of tensors are finite, from their bits, by numpy.

Without its sign a floating-point number is ordered as its bits are. So all elements are finite if the
largest bits of both signs are, and the largest integers tell both in two passes over a cached block. That
is measured as 45 GB/s per core for bfloat16 (`torch.aminmax` 21). numpy releases the interpreter's lock and
starts no threads, so a stager that imports it is small, and its speed does not depend on the node's cores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.keeping import OwnPass
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import DTYPES

_UNCAST: Mapping[str, str] = MappingProxyType({})


def inspect(spec: TensorSpec, block: memoryview, *, casts: Mapping[str, str] = _UNCAST) -> bool:
    """Refuse with `CheckpointNotFinite` if elements of a tensor are infinite or not numbers.

    Args:
        spec: The tensor.
        block: Some whole elements of the tensor.
        casts: Tensor → the type to which a load casts it. Its elements must have a place there, too.

    Returns:
        Whether any element is not zero. Integers and scales without a sign have no other check.
    """
    known = DTYPES[spec.dtype]
    if known.infinite is None:
        return bool(np.frombuffer(block, np.uint8).any())
    most = _most(block, known.bits // 8)
    if most >= known.infinite:
        raise _not_finite(spec)
    served = casts.get(spec.name)
    if served is not None and _number(spec.dtype, most) > (DTYPES[served].largest or math.inf):
        raise _too_large(spec, served)
    return most != 0


def _most(block: memoryview, size: int) -> int:
    """Return the bits of the element with the largest absolute value, without its sign."""
    unsigned: np.ndarray[Any, np.dtype[Any]] = np.frombuffer(block, np.dtype(f"<u{size}"))
    sign = 1 << (8 * size - 1)
    positive = int(unsigned.view(np.dtype(f"<i{size}")).max())
    negative = int(unsigned.max()) - sign
    return max(positive, negative, 0)


def _number(dtype: str, bits: int) -> float:
    """Return the number that some bits are in a type without scales."""
    if dtype == "BF16":  # the upper half of a number in F32
        dtype, bits = "F32", bits << 16
    size = DTYPES[dtype].bits // 8
    return float(np.frombuffer(bits.to_bytes(size, "little"), f"<f{size}")[0])


def _not_finite(spec: TensorSpec) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_NOT_FINITE,
        f"tensor {spec.name[:200]!r} has values that are infinite or not a number",
    )


def _too_large(spec: TensorSpec, served: str) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_NOT_FINITE,
        f"tensor {spec.name[:200]!r} has values in {spec.dtype} that are infinite in {served}, the type of"
        f" the running model: its largest number is {DTYPES[served].largest:.6g}. Find out why the training makes"
        f" such values, or start the fleet on a model in {spec.dtype}",
    )


def own_pass(casts: Mapping[str, str] | None) -> OwnPass:
    """Return a pass in this process; see `keeping.Passes`."""
    return OwnPass() if casts is None else OwnPass(partial(inspect, casts=casts))
