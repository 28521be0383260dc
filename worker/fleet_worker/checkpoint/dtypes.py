"""The types of a tensor's elements, by their names in safetensors: one table for headers, checks and loads."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dtype:
    """A type of elements.

    Fields:
        bits: of an element.
        torch: torch's name of it; None if torch has no such type.
        infinite: bits of a number without the sign; from these on they are infinities and NaNs. None for integers
            and for scales without a sign.
        largest: the largest number, of a type to which a load casts others; else None.
    """

    bits: int
    torch: str | None
    infinite: int | None = None
    largest: float | None = None


DTYPES = {
    "BOOL": Dtype(8, "bool"),
    "U8": Dtype(8, "uint8"),
    "I8": Dtype(8, "int8"),
    "F8_E4M3": Dtype(8, "float8_e4m3fn", 0x7F),
    "F8_E5M2": Dtype(8, "float8_e5m2", 0x7C),
    "F8_E8M0": Dtype(8, "float8_e8m0fnu"),
    "F4": Dtype(4, None),
    "F6_E2M3": Dtype(6, None),
    "F6_E3M2": Dtype(6, None),
    "I16": Dtype(16, "int16"),
    "U16": Dtype(16, "uint16"),
    "F16": Dtype(16, "float16", 0x7C00, 65504.0),
    "BF16": Dtype(16, "bfloat16", 0x7F80, 2.0**128 - 2.0**120),
    "I32": Dtype(32, "int32"),
    "U32": Dtype(32, "uint32"),
    "F32": Dtype(32, "float32", 0x7F80_0000, 2.0**128 - 2.0**104),
    "I64": Dtype(64, "int64"),
    "U64": Dtype(64, "uint64"),
    "F64": Dtype(64, "float64", 0x7FF0_0000_0000_0000, math.inf),
    "C64": Dtype(64, None),
}
CASTABLE = frozenset(name for name, each in DTYPES.items() if each.largest is not None)
"""Types without scales, which a load may cast to one another. Those of 8 bits and less have scales in other tensors."""
