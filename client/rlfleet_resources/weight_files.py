"""The files of weights, as trainers write and workers read them: names, types of tensors, and the digest.

Source: section "Format" of the README in the repository `huggingface/safetensors`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
WEIGHTS_SUFFIX = ".safetensors"
LENGTH_BYTES = 8
"""At the begin of a file: the length of its header, little-endian."""
HEADER_LIMIT = 100_000_000
"""The format's own limit, in bytes."""


class Encoding(StrEnum):
    """How a delta has the difference of a tensor, before it is compressed."""

    XOR = "xor"
    """New bytes XOR those of the base, for all bytes of the tensor."""
    OVERWRITE = "overwrite"
    """The number of changed bytes and their positions, ascending, as uint32; and then the new bytes."""


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
DIGEST_PREFIX = "sha256:"


def manifest_of(hashes: Mapping[str, str]) -> str:
    """The manifest: one line per file, `<sha256>  <name>`, sorted by name. The hashes are in hex."""
    return "".join(f"{digest}  {name}\n" for name, digest in sorted(hashes.items()))


def digest_of(hashes: Mapping[str, str]) -> str:
    """The SHA-256 of the manifest, in the form of `spec.digest` and `StageRequest.digest`."""
    # Names are bytes for the file system and `sha256sum`, and may not be UTF-8.
    manifest = manifest_of(hashes).encode(errors="surrogateescape")
    return DIGEST_PREFIX + hashlib.sha256(manifest).hexdigest()
