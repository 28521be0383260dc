"""The headers of open files."""

from __future__ import annotations

from fleet_worker.checkpoint.files import OpenFile
from fleet_worker.checkpoint.format import TensorSpec, header_length, parse_header
from rlfleet_resources.weight_files import LENGTH_BYTES


def specs_of(file: OpenFile) -> tuple[TensorSpec, ...]:
    """Return the tensors in the header of a file of weights."""
    return parse_header(header_of(file), file=file.name, size=file.state.size)


def header_of(file: OpenFile) -> bytes:
    """Return the header of a file of weights, which is JSON."""
    return begin_of(file)[LENGTH_BYTES:]


def begin_of(file: OpenFile) -> bytes:
    """Return all bytes of a file of weights before those of its tensors."""
    size = file.state.size
    prefix = file.read(0, min(LENGTH_BYTES, size))
    return prefix + file.read(LENGTH_BYTES, header_length(prefix, file=file.name, size=size))
