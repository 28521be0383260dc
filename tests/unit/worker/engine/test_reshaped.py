"""Tensors that take over new weights in another shape. `tests/engine/test_architectures.py` shows it on CPUs."""

from __future__ import annotations

from types import SimpleNamespace

from fleet_worker.engine.reshaped import may_take


def test_a_tensor_of_an_accelerator_keeps_its_address() -> None:
    result = SimpleNamespace(shape=(48,))

    for device in ("cpu", "cuda"):
        tensor = SimpleNamespace(shape=(64,), device=SimpleNamespace(type=device))
        assert may_take(tensor, result) is (device == "cpu")
