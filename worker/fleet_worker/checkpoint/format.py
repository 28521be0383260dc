"""The format of a checkpoint: the header of a safetensors file.

A file is 8 bytes of header length (little endian), the header in JSON, then the data. vLLM does not
check the header before it replaces the running model's weights, so the worker checks all of it first.

Source: section "Format" of the README in the repository `huggingface/safetensors`.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import DTYPES, HEADER_LIMIT, LENGTH_BYTES

_MOST_VALUES = 2_000_000
"""Commas and opening brackets of a JSON text. Nearly each value follows one, and takes up to 200 bytes of memory for 3
of the text. The header of a tensor has eight, and one for each dimension.
"""
_MOST_DIMENSIONS = 64
_LARGEST = 2**63 - 1
"""Limits of torch. Without them the product of the dimensions of one tensor may take minutes."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a file.

    Fields:
        begin / end: byte positions in the file, not in its data section.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def signature(self) -> tuple[str, tuple[int, ...]]:
        """Type and shape, which are the same in every version of a model."""
        return self.dtype, self.shape


def header_length(prefix: bytes, *, file: str, size: int) -> int:
    """Return the length of the header in bytes, from the first 8 bytes of a file of `size` bytes."""
    if len(prefix) < LENGTH_BYTES:
        raise Refusal(Reason.CHECKPOINT_TRUNCATED, f"{file} ends within its first 8 bytes")
    (length,) = struct.unpack("<Q", prefix[:LENGTH_BYTES])
    if length > HEADER_LIMIT:
        # The first bytes of pickled files, archives and text are a huge number.
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{file} is not a safetensors file")
    if LENGTH_BYTES + length > size:
        raise Refusal(
            Reason.CHECKPOINT_TRUNCATED,
            f"{file} ends within its header: it has {size} bytes, but the header ends at byte"
            f" {LENGTH_BYTES + length}",
        )
    return int(length)


def parse_header(header: bytes, *, file: str, size: int) -> tuple[TensorSpec, ...]:
    """Return the tensors of a file, in the order of their bytes.

    Args:
        header: The whole JSON header.
        file: Name for messages.
        size: Length of the file in bytes.

    Errors:
        Refusal: `CheckpointMalformed` for an invalid header, `CheckpointTruncated` if the file is
            shorter or longer than the header says.
    """
    entries = _entries(header, file)
    start = LENGTH_BYTES + len(header)
    specs = [
        _spec(name, entry, file=file, start=start)
        for name, entry in entries.items()
        if name != "__metadata__"
    ]
    specs.sort(key=lambda spec: (spec.begin, spec.end))
    position = start
    for spec in specs:
        if spec.begin != position:
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED, f"the tensors of {file} overlap or leave a gap"
            )
        position = spec.end
    if position != size:
        raise Refusal(
            Reason.CHECKPOINT_TRUNCATED,
            f"{file} has {size} bytes, but its header describes {position}",
        )
    return tuple(specs)


def parse_metadata(header: bytes, *, file: str) -> dict[str, str]:
    """Return the texts that a writer has put next to the tensors (`__metadata__`); empty without any.

    Errors:
        Refusal: `CheckpointMalformed` for an invalid header.
    """
    return dict(_entries(header, file).get("__metadata__") or {})


def parse_json(content: bytes, *, file: str) -> Any:
    """Return what a JSON text says, as strictly as the safetensors library: only UTF-8, no NaN.

    Errors:
        Refusal: `CheckpointMalformed`; its values would take too much memory.
        ValueError: It is not JSON.
    """
    if sum(map(content.count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED, f"the JSON in {file} has more than {_MOST_VALUES} values"
        )
    try:
        return json.loads(content.decode(), parse_constant=_refuse_constant)
    except RecursionError as error:  # too many nested brackets
        raise ValueError("too many nested brackets") from error


def _entries(header: bytes, file: str) -> dict[str, Any]:
    try:
        entries = parse_json(header, file=file)
    except ValueError:
        entries = None
    if not isinstance(entries, dict):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"the header of {file} is not a JSON object")
    notes = entries.get("__metadata__")
    if notes is not None and not _maps_texts(notes):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED, f"the header of {file} has metadata that is not text"
        )
    return entries


def _spec(name: str, entry: Any, *, file: str, start: int) -> TensorSpec:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        fits = len(shape) <= _MOST_DIMENSIONS and (
            (_natural(end) - _natural(begin)) * 8
            == DTYPES[dtype].bits * math.prod(map(_natural, shape))
        )
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"the header of {file} has an invalid dtype, shape or data_offsets for the tensor"
            f" {name[:200]!r}",
        )
    return TensorSpec(name, dtype, tuple(shape), start + begin, start + end)


def _refuse_constant(name: str) -> None:
    raise ValueError(name)


def _maps_texts(value: Any) -> bool:
    return isinstance(value, dict) and {type(each) for each in value.values()} <= {str}


def _natural(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= _LARGEST:
        raise ValueError
    return value


CONFIG_LIMIT = 4 * 1024 * 1024
"""Bytes."""
