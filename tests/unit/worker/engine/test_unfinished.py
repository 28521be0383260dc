"""Layers that a load has left unfinished, over a fake of vLLM's layerwise loading.

`tests/engine/test_unfinished_transfers.py` does the same with the real one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.unfinished import drop_unfinished, layers_without_all_parts
from fleet_worker.engine.vllm_names import LAYERWISE


@dataclass
class FakeLayer:
    """A layer with vLLM's record of its load."""

    unfinished: bool
    kernel_tensors: str | None = "its tensors"
    tensors: str = "none"
    parts: int = 0
    loaded_weights: list[tuple[str, Any]] = field(default_factory=list)

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

    def named_modules(self) -> list[tuple[str, FakeLayer]]:
        return [(f"layers.{number}", layer) for number, layer in enumerate(self._layers)]


@pytest.fixture
def layerwise(monkeypatch: pytest.MonkeyPatch) -> Any:
    def place(layer: FakeLayer, info: FakeLayer) -> None:
        layer.tensors = str(info.kernel_tensors)

    members = {"get_layerwise_info": lambda layer: layer, "_place_kernel_tensors": place}
    install(monkeypatch, {LAYERWISE: members | {"LOADING_LAYERS": {"a layer"}}})
    return sys.modules[LAYERWISE]


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


def part(shard: Any, expert: int | None = None) -> tuple[str, Any]:
    """One call of a layer's weight loader, as vLLM records it."""
    if expert is not None:
        return "w13_weight", SimpleNamespace(arguments={"shard_id": shard, "expert_id": expert})
    return "weight", SimpleNamespace(arguments={"loaded_shard_id": shard})


WHOLE = ("weight", SimpleNamespace(arguments={"loaded_weight": "all of it"}))


@pytest.mark.parametrize(
    ("loaded", "lacks"),
    [
        pytest.param([part("q"), part("v")], True, id="no k"),
        pytest.param([part("q"), part("k"), part("v")], False, id="q, k and v"),
        pytest.param([part(0)], True, id="gate without up"),
        pytest.param([part(0), part(1)], False, id="gate and up"),
        pytest.param([part((0, 1))], False, id="two parts in one tensor"),
        pytest.param([WHOLE], False, id="one tensor with padding"),
        pytest.param([], False, id="left out"),
        pytest.param(
            [part("w1", 0), part("w3", 0), part("w1", 1)], True, id="an expert without w3"
        ),
        pytest.param([part("w1", 0), part("w3", 0)], True, id="one of two experts"),
        pytest.param(
            [part(shard, expert) for shard in ("w1", "w3") for expert in (0, 1)],
            False,
            id="experts with padding",
        ),
    ],
)
def test_an_update_needs_all_parts_of_a_layer_or_none(
    layerwise: Any, loaded: list[tuple[str, Any]], lacks: bool
) -> None:
    layer: Any = FakeLayer(unfinished=True, loaded_weights=loaded)
    layer.output_sizes, layer.global_num_experts = [4, 4], 2
    layer.moe_config = SimpleNamespace(is_act_and_mul=True)
    finished = FakeLayer(unfinished=False, loaded_weights=[part("q")])

    assert layers_without_all_parts(FakeModel(finished, layer)) == ["layers.1"] * lacks


def test_experts_without_a_gate_have_one_part(layerwise: Any) -> None:
    layer: Any = FakeLayer(unfinished=True, loaded_weights=[part("w1", 0), part("w1", 1)])
    layer.global_num_experts, layer.moe_config = 2, SimpleNamespace(is_act_and_mul=False)

    assert layers_without_all_parts(FakeModel(layer)) == []


@pytest.mark.parametrize(("sizes", "lacks"), [([8, 8, 4], False), ([8, 8, 8], True)])
def test_padding_at_the_end_of_a_layer_does_not_count_as_a_missing_part(
    layerwise: Any, sizes: list[int], lacks: bool
) -> None:
    layer: Any = FakeLayer(unfinished=True, loaded_weights=[part(0), part(1)])
    layer.output_sizes, layer.tp_size = sizes, 2
    parent: Any = FakeLayer(unfinished=False)
    parent.in_proj_padding = 2
    model: Any = FakeModel()
    model.named_modules = lambda: [("attention", parent), ("attention.in_proj", layer)]

    assert layers_without_all_parts(model) == ["attention.in_proj"] * lacks
