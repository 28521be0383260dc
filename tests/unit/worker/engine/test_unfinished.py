"""Layers that a load has left unfinished, over a fake of vLLM's layerwise loading.

`tests/engine/test_unfinished_transfers.py` does the same with the real one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest

from fleet_worker.engine.unfinished import LAYERWISE, drop_unfinished


@dataclass
class FakeLayer:
    """A layer with vLLM's record of its load."""

    unfinished: bool
    kernel_tensors: str | None = "its tensors"
    tensors: str = "none"
    parts: int = 0

    def can_load(self) -> bool:
        return self.unfinished

    def reset(self) -> None:
        self.unfinished, self.kernel_tensors, self.parts = False, None, 0


class FakeModel:
    """Layers, and a setting that vLLM changes during a load."""

    def __init__(self, *layers: FakeLayer) -> None:
        self._layers = layers
        self._original_do_torchao_reload = True
        self._do_torchao_reload = False

    def modules(self) -> tuple[FakeLayer, ...]:
        return self._layers


@pytest.fixture
def layerwise(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType(LAYERWISE)
    module.get_layerwise_info = lambda layer: layer
    module._place_kernel_tensors = lambda layer, info: setattr(
        layer, "tensors", info.kernel_tensors
    )
    module.LOADING_LAYERS = {"a layer"}
    monkeypatch.setitem(sys.modules, LAYERWISE, module)
    return module


def test_unfinished_layers_get_their_tensors_back_and_lose_their_parts(layerwise: Any) -> None:
    half, first = FakeLayer(unfinished=True, parts=1), FakeLayer(unfinished=True, parts=1)
    first.kernel_tensors = None  # the first load of a process has none
    whole = FakeLayer(unfinished=False, tensors="new ones")
    model = FakeModel(half, first, whole)
    drop_unfinished(model)

    assert (half.tensors, half.unfinished, half.parts) == ("its tensors", False, 0)
    assert (first.tensors, first.unfinished, first.parts) == ("none", False, 0)
    assert (whole.tensors, whole.kernel_tensors) == ("new ones", "its tensors")
    assert not layerwise.LOADING_LAYERS
    assert model._do_torchao_reload is True
