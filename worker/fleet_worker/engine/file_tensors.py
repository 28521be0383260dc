"""The tensors of staged files, in a process of the engine."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable, Iterator, Mapping

import torch

from fleet_worker.checkpoint.format import (
    LENGTH_BYTES,
    TensorSpec,
    header_length,
    parse_header,
)
from fleet_worker.checkpoint.mapping import mapped, tensor_over

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
}


class Reader:
    """One file, open in this process."""

    def __init__(self, path: str, *, in_memory: bool) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._mapped: mmap.mmap | None = None
        try:
            size = os.fstat(self._descriptor).st_size
            length = header_length(bytes(self._bytes(0, LENGTH_BYTES)), file="the file", size=size)
            header = bytes(self._bytes(LENGTH_BYTES, length))
            self.specs = parse_header(header, file="the file", size=size)
            if in_memory:
                # Map only sealed bytes: if a mapped file shrinks, SIGBUS ends the engine.
                self._mapped = mapped(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise

    def tensor(self, spec: TensorSpec) -> torch.Tensor:
        """Return a tensor of the file, over its mapped bytes or a copy of them."""
        dtype = _DTYPES[spec.dtype]
        if spec.end == spec.begin:
            return torch.empty(spec.shape, dtype=dtype)
        if self._mapped is not None:
            count = (spec.end - spec.begin) // dtype.itemsize
            flat = tensor_over(self._mapped, dtype, offset=spec.begin, count=count)
        else:
            flat = torch.frombuffer(self._bytes(spec.begin, spec.end - spec.begin), dtype=dtype)
        return flat.view(spec.shape)

    def _bytes(self, offset: int, length: int) -> bytearray:
        buffer = bytearray(length)
        view, position = memoryview(buffer), 0
        while position < length:
            count = os.preadv(self._descriptor, [view[position:]], offset + position)
            if count == 0:
                raise EOFError("a staged file became shorter during the load")
            position += count
        return buffer

    def close(self) -> None:
        """Close the file."""
        # The mapping goes when the last tensor over it does.
        self._mapped = None
        os.close(self._descriptor)


def tensors_of(
    readers: Iterable[Reader], copies: Mapping[str, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors, grouped by module, so that vLLM needs no buffers for incomplete layers.

    Args:
        readers: The files.
        copies: Name of a tensor that the files lack → the tensor in them that it equals.
    """
    held = {spec.name: (spec, reader) for reader in readers for spec in reader.specs}
    where = {name: held[original] for name, original in copies.items()} | held
    for name in sorted(where, key=lambda name: name.rpartition(".")[0]):
        spec, reader = where[name]
        yield name, reader.tensor(spec)
