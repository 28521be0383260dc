"""As much of torch as reads bytes: flat tensors over buffers, without arithmetic of their own.

Modules that import torch at their head can be imported over it, and are gone afterwards.
"""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any


@dataclass(frozen=True)
class FakeDtype:
    """A type of elements; `letter` as in `struct`, empty where Python has no such number."""

    name: str
    itemsize: int
    letter: str = ""


DTYPES = {
    each.name: each
    for each in (
        FakeDtype("bool", 1, "?"),
        FakeDtype("uint8", 1, "B"),
        FakeDtype("uint16", 2, "H"),
        FakeDtype("uint32", 4, "I"),
        FakeDtype("uint64", 8, "Q"),
        FakeDtype("int8", 1, "b"),
        FakeDtype("int16", 2, "h"),
        FakeDtype("int32", 4, "i"),
        FakeDtype("int64", 8, "q"),
        FakeDtype("float16", 2),
        FakeDtype("bfloat16", 2),
        FakeDtype("float32", 4, "f"),
        FakeDtype("float64", 8, "d"),
        FakeDtype("float8_e4m3fn", 1),
        FakeDtype("float8_e5m2", 1),
        FakeDtype("float8_e8m0fnu", 1),
    )
}


class FakeTensor:
    """Elements over a buffer, or in a list."""

    def __init__(
        self,
        elements: memoryview | Sequence[Any],
        dtype: FakeDtype,
        shape: Sequence[int] | None = None,
    ) -> None:
        self.elements, self.dtype = elements, dtype
        self.shape = tuple(shape) if shape is not None else (len(elements),)

    def numel(self) -> int:
        return math.prod(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    def view(self, shape: Sequence[int]) -> FakeTensor:
        assert math.prod(shape) == self.numel(), "torch refuses other numbers of elements"
        return FakeTensor(self.elements, self.dtype, shape)

    def __getitem__(self, part: slice) -> FakeTensor:
        return FakeTensor(self.elements[part], self.dtype)

    def max(self) -> Any:
        return max(self.elements)

    def float(self) -> FakeTensor:
        return self

    def raw(self) -> bytes:
        return self.elements.tobytes() if isinstance(self.elements, memoryview) else b""


def _frombuffer(buffer: Any, *, dtype: FakeDtype, offset: int = 0, count: int = -1) -> FakeTensor:
    view = memoryview(buffer).cast("B")
    end = len(view) if count < 0 else offset + count * dtype.itemsize
    assert end <= len(view), "torch refuses to read beyond the buffer"
    part = view[offset:end]
    return FakeTensor(part.cast(dtype.letter or f"{'B' if dtype.itemsize == 1 else 'H'}"), dtype)


def _isfinite(tensor: FakeTensor) -> Any:
    return SimpleNamespace(all=lambda: all(map(math.isfinite, tensor.elements)))


def _empty(shape: int | Sequence[int], *, dtype: FakeDtype) -> FakeTensor:
    whole = (shape,) if isinstance(shape, int) else tuple(shape)
    return FakeTensor([0] * math.prod(whole), dtype, whole)


def _inference_mode() -> Callable[[Any], Any]:
    return lambda function: function


def fake_torch() -> ModuleType:
    """A module in the place of torch."""
    made = ModuleType("torch")
    members = {
        "Tensor": FakeTensor,
        "dtype": FakeDtype,
        "frombuffer": _frombuffer,
        "isfinite": _isfinite,
        "empty": _empty,
        "inference_mode": _inference_mode,
        **DTYPES,
    }
    for name, member in members.items():
        setattr(made, name, member)
    return made


@contextmanager
def imported_over_fake_torch(name: str) -> Iterator[Any]:
    """A module of the worker, imported with a fake torch. Later imports get the real torch."""
    touching = [
        "fleet_worker.checkpoint.mapping",
        "fleet_worker.engine.cuda_runtime",
        "fleet_worker.engine.held",
        "fleet_worker.engine.changes",
        "fleet_worker.engine.parameters",
        "fleet_worker.engine.file_tensors",
        "fleet_worker.engine.start_loader",
        "fleet_worker.engine.extension",
    ]
    assert "torch" not in sys.modules, "with torch there is no need for a fake"
    sys.modules["torch"] = fake_torch()
    try:
        yield importlib.import_module(name)
    finally:
        for each in ("torch", *touching):
            sys.modules.pop(each, None)
        for each in touching:
            package, _, module = each.rpartition(".")
            sys.modules[package].__dict__.pop(module, None)
