"""What of a checkpoint only torch and transformers can tell: finite values, filled-in configs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from fleet_worker.adapters.mapping import tensor_over
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason

_FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
}


@dataclass(frozen=True, slots=True)
class _Bits:
    """A floating-point format of 8 bits, for which torch does not compute: infinities and NaNs are
    the bit patterns (without the sign) from `limit` on.
    """

    mask: int
    limit: int


_BYTES = {"F8_E4M3": _Bits(0x7F, 0x7F), "F8_E5M2": _Bits(0x7F, 0x7C)}


def look(spec: TensorSpec, block: memoryview) -> bool:
    """Refuse with `CheckpointNotFinite` if elements of a tensor are infinite or not numbers.

    Measured 13 GB/s a core for bfloat16 in blocks that the processor has in its cache, where
    `torch.isfinite` does 0.25: the smallest and the largest of some numbers are finite if all of
    them are, and torch finds both at once. The interpreter's lock is not held meanwhile.

    Args:
        spec: The tensor.
        block: Some whole elements of it.

    Returns:
        Whether any of them is not zero. Integers, and scales without a sign, are looked at for that
        only.
    """
    if spec.dtype in _FLOATS:
        smallest, largest = _ends(block, _FLOATS[spec.dtype])
        if not (math.isfinite(smallest) and math.isfinite(largest)):
            raise _not_finite(spec)
        return smallest != 0 or largest != 0
    if spec.dtype in _BYTES:
        known = _BYTES[spec.dtype]
        words = tensor_over(block, torch.uint8, offset=0, count=len(block))
        most = int(torch.bitwise_and(words, known.mask).max())
        if most >= known.limit:
            raise _not_finite(spec)
        return most != 0
    return _ends(block, torch.uint8)[1] != 0


def _ends(block: memoryview, dtype: torch.dtype) -> tuple[float, float]:
    """The smallest and the largest element; NaN if one is."""
    elements = tensor_over(block, dtype, offset=0, count=len(block) // dtype.itemsize)
    smallest, largest = torch.aminmax(elements)
    return float(smallest), float(largest)


def _not_finite(spec: TensorSpec) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_NOT_FINITE,
        f"tensor {spec.name[:200]!r} holds values that are infinite or not a number",
    )


def normalised_config(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with the defaults of its architecture filled in.

    Two releases of transformers write one model's configuration differently (`rope_theta` against
    `rope_parameters`, keys left out that have their default value); read by one release they are
    equal. A model type that transformers does not know is compared as it is written.

    Source: `CONFIG_MAPPING`, transformers 5.
    """
    from transformers import CONFIG_MAPPING  # noqa: PLC0415 - half a second, and rarely needed

    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return config
    try:
        filled = CONFIG_MAPPING[kind].from_dict(config).to_dict()
    except Exception as error:  # what a broken configuration raises depends on its class
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED, f"config.json is no {kind} configuration"
        ) from error
    # transformers drops the list that says what class to load.
    return {**filled, "architectures": config.get("architectures")}
