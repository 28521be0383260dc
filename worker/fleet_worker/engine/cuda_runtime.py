"""CUDA, as far as it concerns the memory of the host: registration, pinned buffers, and copies from both.

ROCm has the same names in torch. Source: `cudaHostRegister`, CUDA Runtime API; `torch.cuda.cudart`, torch 2.11.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from fleet_worker.checkpoint.mapping import tensor_over
from fleet_worker.engine.held import RegistrationError

_PORTABLE, _READ_ONLY = 1, 8
_INVALID, _NOT_SUPPORTED = 1, 801
"""Errors for read-only memory of a device that never registers it. Source: `cudaError`."""
_BUFFERS, _BUFFER_BYTES = 4, 16 * 1024 * 1024


class CudaRuntime:
    """The runtime of one device. All calls but `copying` come from one thread (`held.Held`).

    CUDA keeps the error of a failed call for the thread that made it, and the next kernel that this thread
    starts would fail with it. So a registration that may fail needs a thread that starts no kernels.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: Any = None
        self._refused = ""

    @property
    def has_buffers(self) -> bool:
        """Whether there are pinned buffers."""
        return self._buffers is not None

    def open(self) -> None:
        """Take the pinned buffers."""
        if self._buffers is None:
            torch.cuda.set_device(self._device)
            self._buffers = _pinned_buffers()

    def register(self, content: mmap.mmap) -> int:
        """Register a mapping that nothing can write to."""
        if self._refused:  # another try would be refused, too
            raise RegistrationError(self._refused)
        address = int(tensor_over(content, torch.uint8, offset=0, count=len(content)).data_ptr())
        code = torch.cuda.cudart().cudaHostRegister(address, len(content), _PORTABLE | _READ_ONLY)
        if int(code) in (_INVALID, _NOT_SUPPORTED):
            self._refused = f"CUDA does not register read-only memory here (error {int(code)})"
            raise RegistrationError(self._refused)
        if int(code) != 0:
            raise RegistrationError(f"CUDA did not register the memory (error {int(code)})")
        return address

    def unregister(self, address: int) -> None:
        """Unregister a mapping."""
        code = torch.cuda.cudart().cudaHostUnregister(address)
        if int(code) != 0:
            raise RegistrationError(f"CUDA does not unregister memory (error {int(code)})")

    @contextmanager
    def copying(self, registered: Sequence[tuple[int, int]]) -> Iterator[None]:
        """Let copies from the host to the device run on by themselves; wait for all of them at the end.

        In the engine's own thread. Without pinned buffers, only copies of registered bytes do.

        Args:
            registered: Address ranges that the device can read.
        """
        from fleet_worker.engine.copies import Copies  # noqa: PLC0415 - needs all of torch

        copies = Copies(registered, self._buffers, is_on_device=lambda tensor: tensor.is_cuda)
        try:
            with copies:
                yield
        finally:  # also after a failure: the bytes must stay until nothing reads them
            torch.cuda.synchronize(self._device)


def runtime_here() -> CudaRuntime | None:
    """Return the runtime of this process's device; None for CPUs, and for devices without one.

    Call it in the engine's own thread, for which vLLM has chosen the device.
    """
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available():
        return None
    return CudaRuntime(torch.device("cuda", cuda.current_device()))


def _pinned_buffers() -> Any:
    from fleet_worker.engine.copies import Buffers  # noqa: PLC0415 - needs all of torch

    memory = torch.empty(_BUFFERS * _BUFFER_BYTES, dtype=torch.uint8, pin_memory=True)
    return Buffers(memory.split(_BUFFER_BYTES), torch.cuda.Event)
