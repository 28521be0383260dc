"""The tensors of staged files, in a process of the engine.

Bytes in sealed memory cannot change, so they are mapped. Files can: a file that shrinks under a mapping ends
the process (SIGBUS), and one that another process writes to through a mapping shows no later time. So the
bytes of a file are copied once, and the copy must have the digest of the stage before the model gets it.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from fleet_worker.checkpoint.digests import tensor_digest
from fleet_worker.checkpoint.format import TensorSpec, header_length, parse_header
from fleet_worker.checkpoint.mapping import tensor_over
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import DTYPES, LENGTH_BYTES

T = TypeVar("T")
R = TypeVar("R")

_DTYPES = {name: getattr(torch, each.torch) for name, each in DTYPES.items() if each.torch}
Content = tuple[mmap.mmap | bytearray, int]
"""A buffer, and the position of a tensor's first byte in it."""

_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_THREADS = 4
_AHEAD_BYTES = 256 * 1024 * 1024
"""Bytes that are read and digested ahead of the model, at least one tensor."""


class Digested:
    """The digests of a checkpoint's tensors, to which bytes are compared before the model gets them."""

    def __init__(self, digests: Mapping[str, str]) -> None:
        """`digests`: tensor name → digest (`digests.tensor_digest`)."""
        self._digests = digests

    def check_names(self, names: Iterable[str]) -> None:
        """Refuse with `CheckpointChanged` if files have other tensors than when they were digested."""
        if different := {*names} ^ {*self._digests}:
            raise _changed(min(different))

    def check(self, name: str, dtype: str, shape: Sequence[int], content: Any) -> None:
        """Refuse with `CheckpointChanged` if a tensor has other bytes than when it was digested.

        Args:
            name: Its name.
            dtype: The name of its type in safetensors.
            shape: Its dimensions.
            content: A buffer with its bytes.

        Errors:
            ValueError: The files have no such tensor.
        """
        if name not in self._digests:
            raise ValueError(f"the digested files have no tensor {name[:200]!r}")
        found = tensor_digest(dtype, shape)
        found.update(content)
        if self._digests[name] != found.hexdigest():
            raise _changed(name)


def _changed(name: str) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_CHANGED,
        f"the tensor {name[:200]!r} changed after its digest was computed; never write into published files",
    )


class Reader:
    """One file, open in this process."""

    def __init__(
        self,
        path: str,
        digested: Digested | None,
        mapping: Callable[[int, int], mmap.mmap] | None = None,
    ) -> None:
        """Open a file and read its header.

        Args:
            path: Its path.
            digested: What its bytes are compared to. None for sealed bytes in memory.
            mapping: Maps these (`held.Held.content_of`).

        Errors:
            ValueError: They are not sealed, or there is no `mapping`.
        """
        if digested is None and mapping is None:
            raise ValueError("there are neither digests nor a mapping of the bytes")
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._digested = digested
        self._mapped: mmap.mmap | None = None
        try:
            state = os.fstat(self._descriptor)
            self.key, size = (state.st_dev, state.st_ino), state.st_size
            length = header_length(bytes(self._bytes(0, LENGTH_BYTES)), file="the file", size=size)
            header = bytes(self._bytes(LENGTH_BYTES, length))
            self.specs = parse_header(header, file="the file", size=size)
            if digested is None and mapping is not None:
                self._mapped = mapping(self._descriptor, size)
        except BaseException:
            os.close(self._descriptor)
            raise

    def content(self, spec: TensorSpec) -> Content:
        """Return the bytes of a tensor, those of a file after they were compared. From any thread.

        Errors:
            Refusal: `CheckpointChanged`.
        """
        if self._mapped is not None:
            return self._mapped, spec.begin
        content = self._bytes(spec.begin, spec.end - spec.begin)
        if self._digested is not None:
            self._digested.check(spec.name, *spec.signature, content)
        return content, 0

    def tensor(self, spec: TensorSpec, content: Content) -> torch.Tensor:
        """Return a tensor of the file, over its `content`."""
        dtype = _DTYPES[spec.dtype]
        if spec.end == spec.begin:
            return torch.empty(spec.shape, dtype=dtype)
        buffer, offset = content
        count = (spec.end - spec.begin) // dtype.itemsize
        return tensor_over(buffer, dtype, offset=offset, count=count).view(spec.shape)

    def _bytes(self, offset: int, length: int) -> bytearray:
        buffer = bytearray(length)
        view, position = memoryview(buffer), 0
        while position < length:
            count = os.preadv(self._descriptor, [view[position:]], offset + position)
            if count == 0:
                raise Refusal(Reason.CHECKPOINT_CHANGED, "a staged file became shorter")
            position += count
        return buffer

    def close(self) -> None:
        """Close the file."""
        self._mapped = None
        os.close(self._descriptor)


def tensors_of(
    readers: Iterable[Reader],
    copies: Mapping[str, str],
    casts: Mapping[str, str],
    wanted: Container[str] | None = None,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield all tensors, grouped by module, so that vLLM needs no buffers for incomplete layers.

    A cast rounds to the nearest number, and to an even one in the middle of two. vLLM could cast by itself,
    but some of its loaders compute with what they get (`A_log` of Mamba). Cast here, a tensor is to them
    what it would be in a file of the other type.

    Args:
        readers: The files.
        copies: Name of a tensor that the files lack → the tensor in them that it equals.
        casts: Name of a tensor → the type that it gets.
        wanted: Names of the tensors to yield; None for all.

    Errors:
        Refusal: `CheckpointChanged`.
    """
    held = {spec.name: (spec, reader) for reader in readers for spec in reader.specs}
    where = {name: held[original] for name, original in copies.items()} | held
    names = sorted(
        (n for n in where if wanted is None or n in wanted),
        key=lambda name: name.rpartition(".")[0],
    )

    def content(name: str) -> Content:
        spec, reader = where[name]
        return reader.content(spec)

    def size(name: str) -> int:
        spec, _ = where[name]
        return spec.end - spec.begin

    for name, found in ahead(names, size, content):
        spec, reader = where[name]
        tensor = reader.tensor(spec, found)
        yield name, tensor.to(_DTYPES[casts[name]]) if name in casts else tensor


def compared(
    weights: Iterable[tuple[str, torch.Tensor]], digested: Digested
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield copies of tensors that have their digests. The tensors themselves are over mapped files.

    Args:
        weights: Names in the files, and tensors.
        digested: What they are compared to.

    Errors:
        Refusal: `CheckpointChanged`.
    """

    def copied(weight: tuple[str, torch.Tensor]) -> torch.Tensor:
        name, tensor = weight
        copy = tensor.clone(memory_format=torch.contiguous_format)
        content = copy.reshape(-1).view(torch.uint8).numpy()
        digested.check(name, _NAMES[tensor.dtype], tensor.shape, content)
        return copy

    def size(weight: tuple[str, torch.Tensor]) -> int:
        return int(weight[1].nbytes)

    for (name, _), copy in ahead(weights, size, copied):
        yield name, copy


def ahead(
    items: Iterable[T], size: Callable[[T], int], work: Callable[[T], R]
) -> Iterator[tuple[T, R]]:
    """Yield each item with the result of its work, in order, of which some is done ahead in threads.

    Args:
        items: What to work on.
        size: Bytes of a result.
        work: The work on an item.

    Errors:
        Those of `work`.
    """
    waiting: deque[tuple[T, Future[R]]] = deque()
    held = 0
    pool = ThreadPoolExecutor(_THREADS, "rlfleet-load")
    try:
        for item in items:
            waiting.append((item, pool.submit(work, item)))
            held += size(item)
            while held > _AHEAD_BYTES:
                first, future = waiting.popleft()
                yield first, future.result()
                held -= size(first)
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(cancel_futures=True)
