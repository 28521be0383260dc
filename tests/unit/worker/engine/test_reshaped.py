"""Tensors that take over new weights in another shape. vLLM's modules are fakes here.

`tests/engine/test_architectures.py` does the same with vLLM's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.reshaped import take_new_shapes
from fleet_worker.engine.vllm_names import EXPERTS, LAYERWISE, MLA


@dataclass
class FakeTensor:
    """A tensor whose data is its shape."""

    shape: tuple[int, ...]
    device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    @property
    def data(self) -> tuple[int, ...]:
        return self.shape

    @data.setter
    def data(self, value: tuple[int, ...]) -> None:
        self.shape = value

    def numel(self) -> int:
        return self.shape[0]


class FakeMethod:
    """How a layer is processed: its weight gets the shape of the result."""

    def __init__(self, result: tuple[int, ...]) -> None:
        self.result = result

    def process_weights_after_loading(self, layer: Any) -> None:
        layer.weight = FakeTensor(self.result)


class FakeExpertsMethod(FakeMethod):
    pass


class FakeLayer:
    """A layer in a reload, with the tensor that the model has."""

    def __init__(self, method: FakeMethod, tensor: FakeTensor) -> None:
        self.quant_method, self.tensor = method, tensor
        self.weight = tensor
        self.kernel_tensors: Any = ({"weight": tensor}, {})

    def process(self) -> FakeTensor:
        self.quant_method.process_weights_after_loading(self)
        return self.tensor


class FakeAttention:
    """Latent attention, which counts how often it was processed."""

    def __init__(self, projection: Any) -> None:
        self.kv_b_proj = projection
        self.processed = 0

    def process_weights_after_loading(self, _dtype: Any) -> None:
        self.processed += 1


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(
        monkeypatch,
        {
            LAYERWISE: {"get_layerwise_info": lambda layer: layer},
            EXPERTS: {"UnquantizedFusedMoEMethod": FakeExpertsMethod},
            MLA: {"MLAAttention": FakeAttention},
        },
    )


def ready(*layers: Any) -> None:
    take_new_shapes(SimpleNamespace(modules=lambda: layers))


def test_experts_and_the_weight_that_attention_packs_take_what_was_processed() -> None:
    experts = FakeLayer(FakeExpertsMethod((48,)), FakeTensor((64,)))
    absorbed = FakeLayer(FakeMethod((8,)), FakeTensor((0,)))
    other = FakeLayer(FakeMethod((8,)), FakeTensor((0,)))
    ready(experts, absorbed, FakeAttention(absorbed), other, SimpleNamespace())

    shapes = [layer.process().shape for layer in (experts, absorbed, other)]
    assert shapes == [(48,), (8,), (0,)]


def test_a_tensor_of_an_accelerator_keeps_its_address() -> None:
    tensor = FakeTensor((64,), SimpleNamespace(type="cuda"))
    experts = FakeLayer(FakeExpertsMethod((48,)), tensor)
    ready(experts)

    assert experts.process().shape == (64,)


def test_nothing_is_taken_at_the_first_load() -> None:
    experts = FakeLayer(FakeExpertsMethod((48,)), FakeTensor((64,)))
    experts.kernel_tensors = None
    ready(experts)

    assert experts.process().shape == (64,)


@pytest.mark.parametrize("wraps", [False, True])
def test_attention_keeps_what_it_packed_if_its_weight_was_left_out(
    wraps: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    absorbed = FakeLayer(FakeMethod((8,)), FakeTensor((0,)))
    attention = FakeAttention(SimpleNamespace(base_layer=absorbed) if wraps else absorbed)
    ready(attention)
    attention.process_weights_after_loading("bf16")
    assert attention.processed == 0

    absorbed.process()
    attention.process_weights_after_loading("bf16")
    assert attention.processed == 1


def test_each_layer_is_made_ready_once() -> None:
    attention = FakeAttention(FakeLayer(FakeMethod((8,)), FakeTensor((8,))))
    ready(attention)
    method = attention.process_weights_after_loading
    ready(attention)

    assert attention.process_weights_after_loading is method
