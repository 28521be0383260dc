"""The format of a checkpoint: the header of a safetensors file, and the weight files of a directory.

A file is 8 bytes of header length (little endian), the header in JSON, then the data. vLLM does not
check the header before it replaces the running model's weights, so the worker checks all of it first.

Source: section "Format" of the README in the repository `huggingface/safetensors`.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

LENGTH_BYTES = 8
HEADER_LIMIT = 100_000_000
"""The format's own limit, in bytes."""

_MOST_DIMENSIONS = 64
_LARGEST = 2**63 - 1
"""Limits of torch. Without them the product of the dimensions of one tensor may take minutes."""

ITEM_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}


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
    try:
        # As strict as the safetensors library: only UTF-8, no NaN.
        entries = json.loads(header.decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError):  # RecursionError: too many nested brackets
        entries = None
    if not isinstance(entries, dict):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"the header of {file} is not a JSON object")
    notes = entries.get("__metadata__")
    if notes is not None and not _maps_texts(notes):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED, f"the header of {file} has metadata that is not text"
        )
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


def _spec(name: str, entry: Any, *, file: str, start: int) -> TensorSpec:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        fits = len(shape) <= _MOST_DIMENSIONS and (
            (_natural(end) - _natural(begin)) * 8
            == ITEM_BITS[dtype] * math.prod(map(_natural, shape))
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


CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

CONFIG_LIMIT = 4 * 1024 * 1024
INDEX_LIMIT = 128 * 1024 * 1024
"""Bytes. The index of a model with 100,000 tensors has about 10 MB."""

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def weight_files(names: Collection[str], index: bytes | None) -> tuple[str, ...]:
    """Return the sorted names of the files that hold the weights.

    The rule is that of the Hugging Face libraries: the files that the index names. Without an index
    it is `model.safetensors`, and without that file all `.safetensors` files. vLLM reads no hidden ones.

    Args:
        names: All names in the directory.
        index: Content of `INDEX_FILE`, if it exists.

    Errors:
        Refusal: `SourceNotFound` if a file is missing. `CheckpointMalformed` for pickled weights
            (never opened) and for an invalid index.
    """
    if index is not None:
        files = sorted(set(parse_index(index).values()))
        missing = [file for file in files if file not in names]
        if missing:
            raise Refusal(
                Reason.SOURCE_NOT_FOUND,
                f"{INDEX_FILE} names files that do not exist ({len(missing)}), such as {missing[0]}",
            )
        return tuple(files)
    if SINGLE_FILE in names:
        return (SINGLE_FILE,)
    if found := sorted(_weights_among(names)):
        return tuple(found)
    if any(name.endswith(_PICKLED) for name in names):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            "the weights are pickled; save them as safetensors: the worker opens no pickles,"
            " because reading one runs its code",
        )
    raise Refusal(Reason.SOURCE_NOT_FOUND, "the directory has no weight files (.safetensors)")


def started_files(names: Collection[str], opened: Collection[str]) -> frozenset[str]:
    """Return the files that vLLM reads when it starts on a directory.

    Without an index it reads every `.safetensors` file. The last one counts of two with the same tensor.
    Source: `DefaultModelLoader._prepare_weights` with the load format `safetensors`, vLLM 0.32.

    Args:
        names: All names in the directory.
        opened: The files of the checkpoint that was opened there, with its index.
    """
    found = _weights_among(names)
    return found & frozenset(opened) if INDEX_FILE in opened else found


def _weights_among(names: Iterable[str]) -> frozenset[str]:
    return frozenset(n for n in names if n.endswith(".safetensors") and not n.startswith("."))


def has_other_weights(names: Collection[str], opened: Collection[str]) -> bool:
    """Whether a directory has its weights in files that were not among the opened ones.

    Files that are only missing make no difference: a deletion may be under way.

    Args:
        names: All names in the directory now.
        opened: The files of a checkpoint that was opened there. Those of an adapter have fixed names.
    """
    if CONFIG_FILE not in opened:
        return False
    weights = _weights_among(names).difference(opened)
    if INDEX_FILE in names or INDEX_FILE in opened:
        return INDEX_FILE not in opened or (INDEX_FILE not in names and bool(weights))
    return bool(weights) and not (SINGLE_FILE in names and SINGLE_FILE in opened)


def parse_index(index: bytes) -> dict[str, str]:
    """Return tensor name → file name.

    Errors:
        Refusal: `CheckpointMalformed`.
    """
    try:
        weight_map = json.loads(index)["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        entries = {}
    if not entries:
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} has no valid `weight_map`")
    files = set(entries.values())
    if "/" in "".join(files) or _weights_among(files) != files:
        allowed = ".safetensors files of its own directory that are not hidden"
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} may name only {allowed}")
    return entries


def all_tensors(files: Mapping[str, Iterable[TensorSpec]]) -> dict[str, TensorSpec]:
    """Return tensor name → specification, over all files.

    Errors:
        Refusal: `CheckpointMalformed` if two files hold a tensor of the same name, because the load
            may use either.
    """
    tensors: dict[str, TensorSpec] = {}
    for file, specs in files.items():
        for spec in specs:
            if spec.name in tensors:
                raise Refusal(
                    Reason.CHECKPOINT_MALFORMED,
                    f"{file} has a tensor {spec.name!r} that another file has too",
                )
            tensors[spec.name] = spec
    return tensors


def check_index(index: Mapping[str, str], files: Mapping[str, Iterable[TensorSpec]]) -> None:
    """Refuse an index that does not match the files.

    Errors:
        Refusal: `CheckpointMalformed`, because loaders that follow the index would skip tensors.
    """
    held = {(spec.name, file) for file, specs in files.items() for spec in specs}
    if held != set(index.items()):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} does not match the tensors in its files",
        )
