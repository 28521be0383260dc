"""Copies of weights to the device that do not wait for it.

vLLM copies each part of a parameter by itself, and torch waits for each of these copies: 6 GB/s, measured
on one H100, of the 50 that its bus has. `Copies` turns them into copies that run on by themselves, in the
same order, while vLLM works on the next parameter. The host then waits once.

The device must be able to read the bytes without the host: they are registered (`held`), or go through
pinned buffers. A buffer is filled by several threads and given to the device, while the next one is filled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ALIGNMENT = 512
_NON_BLOCKING = True
_THREADS = 4
_PART_BYTES = 1 << 20
"""Least bytes for a thread. Fewer are copied sooner than handed over."""


class Buffers:
    """Pinned memory through which bytes go to the device, one part after the other."""

    def __init__(self, parts: Sequence[torch.Tensor], event: Callable[[], Any]) -> None:
        """Use some memory.

        Args:
            parts: Flat tensors of bytes, of one size and at least two.
            event: Makes an event of the device (`torch.cuda.Event`).
        """
        self._parts = [(part, event()) for part in parts]
        self._bytes = int(parts[0].numel())
        self._at, self._used = 0, 0
        self._threads = ThreadPoolExecutor(_THREADS, "rlfleet-copy")

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Copy a tensor of the host to one of the device, of the same shape and type.

        The source may change or go when this returns.
        """
        for to, given in _pieces(target, source, self._bytes):
            buffer = self._next(given.numel() * given.element_size())
            between = buffer.view(given.dtype).view(given.shape)
            self._fill(between, given)
            to.copy_(between, non_blocking=True)

    def _next(self, size: int) -> torch.Tensor:
        """Return free memory of a buffer."""
        part, event = self._parts[self._at]
        if self._used + size > self._bytes:
            event.record()  # after the last copy that reads this buffer
            self._at, self._used = (self._at + 1) % len(self._parts), 0
            part, event = self._parts[self._at]
            event.synchronize()  # does nothing for an event that was never recorded
        found = part[self._used : self._used + size]
        self._used += -(-size // _ALIGNMENT) * _ALIGNMENT
        return found

    def _fill(self, between: torch.Tensor, given: torch.Tensor) -> None:
        size = given.numel() * given.element_size()
        count = min(_THREADS, size // _PART_BYTES, given.shape[0] if given.dim() else 1)
        if count <= 1:
            _copy(between, given)
        else:
            list(self._threads.map(_copy, between.chunk(count), given.chunk(count)))


class Copies(TorchDispatchMode):  # type: ignore[misc]  # torch is not there to be checked
    """While it is entered, copies from the host to the device do not wait, where they need not.

    The caller waits for the device afterwards, and keeps the registered bytes until then.
    """

    def __init__(
        self,
        registered: Sequence[tuple[int, int]],
        buffers: Buffers | None,
        *,
        is_on_device: Callable[[torch.Tensor], bool],
    ) -> None:
        """Change no copy yet.

        Args:
            registered: Address ranges that the device can read, and that nothing changes.
            buffers: For all other bytes; None to copy these as torch does.
            is_on_device: Whether a tensor is on the device.
        """
        super().__init__()
        self._registered, self._buffers = registered, buffers
        self._is_on_device = is_on_device

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Do one operation of torch."""
        del types
        if func is torch.ops.aten.copy_.default and self._may_run_on(*args[:2]):
            target, source = args[:2]
            if self._is_registered(source):
                return func(target, source, _NON_BLOCKING)
            if self._buffers is not None:
                self._buffers.copy(target, source)
                return target
        return func(*args, **(kwargs or {}))

    def _may_run_on(self, target: torch.Tensor, source: torch.Tensor) -> bool:
        return (
            source.device.type == "cpu"
            and not self._is_on_device(source)
            and self._is_on_device(target)
            and source.shape == target.shape
            and source.dtype == target.dtype  # torch converts on the host otherwise
        )

    def _is_registered(self, source: torch.Tensor) -> bool:
        if not source.is_contiguous():
            return False  # torch would copy it on the host first
        begin = source.data_ptr()
        end = begin + source.numel() * source.element_size()
        return any(first <= begin and end <= last for first, last in self._registered)


def _copy(to: torch.Tensor, given: torch.Tensor) -> None:
    """Copy on the host, in this thread. For contiguous bytes torch would start threads of its own."""
    if given.is_contiguous():
        size = given.numel() * given.element_size()
        ctypes.memmove(to.data_ptr(), given.data_ptr(), size)  # without Python's lock
    else:
        to.copy_(given)


def _pieces(
    target: torch.Tensor, source: torch.Tensor, most_bytes: int
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield parts of both tensors, of at most some bytes each, in order."""
    if source.numel() == 0:
        return
    if source.dim() > 1 and source.is_contiguous() and target.is_contiguous():
        target, source = target.view(-1), source.view(-1)
    if source.numel() * source.element_size() <= most_bytes:
        yield target, source
        return
    row = source[0].numel() * source.element_size()
    if row > most_bytes:
        for to, given in zip(target, source, strict=True):
            yield from _pieces(to, given, most_bytes)
        return
    rows = most_bytes // row
    yield from zip(target.split(rows), source.split(rows), strict=True)
