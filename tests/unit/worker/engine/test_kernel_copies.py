"""Copies of weights that kernels keep, after a load. vLLM's modules are fakes here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.kernel_copies import EMBEDDING, EXPERTS, check_kernels, renew_copies


class FakeMethod:
    """vLLM's method of layers that are not quantised."""

    def __init__(self) -> None:
        self.processed: list[Any] = []

    def process_weights_after_loading(self, layer: Any) -> None:
        self.processed.append(layer)


@dataclass
class FakeExpertsMethod:
    """vLLM's method of experts that are not quantised."""

    moe_kernel: Any


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        EMBEDDING: {"UnquantizedEmbeddingMethod": FakeMethod},
        EXPERTS: {"UnquantizedFusedMoEMethod": FakeExpertsMethod},
    }
    install(monkeypatch, modules)


def renew(*layers: Any, left_out: Collection[str] = ()) -> None:
    """Renew the copies of layers with the names `0`, `1` and so on."""
    names = [(str(number), layer) for number, layer in enumerate(layers)]
    model = SimpleNamespace(modules=lambda: layers, named_modules=lambda: names)
    renew_copies(model, left_out)


def test_kernels_that_keep_the_address_of_scales_are_named() -> None:
    packed = SimpleNamespace(scheme=SimpleNamespace(kernel=SimpleNamespace(dnnl_handler=1)))
    other = SimpleNamespace(scheme=SimpleNamespace(kernel=SimpleNamespace()))
    layers = {"norm": SimpleNamespace(), "up_proj": other, "down_proj": packed}

    with pytest.raises(RuntimeError, match="down_proj"):
        check_kernels(SimpleNamespace(named_modules=layers.items))
    del layers["down_proj"]
    check_kernels(SimpleNamespace(named_modules=layers.items))


def test_only_layers_that_share_a_weight_and_are_not_quantised_are_processed() -> None:
    method = FakeMethod()

    def layer(name: str, pointer: int, quant_method: Any = method) -> Any:
        weight = SimpleNamespace(data_ptr=lambda: pointer)
        return SimpleNamespace(name=name, weight=weight, quant_method=quant_method)

    layers = [
        layer("embed_tokens", 1),
        layer("alone", 2),
        layer("quantised", 1, object()),
        SimpleNamespace(name="norm"),
        layer("lm_head", 1),
    ]
    renew(*layers)

    assert [each.name for each in method.processed] == ["embed_tokens", "lm_head"]


def test_kernels_pack_the_experts_of_each_load() -> None:
    kernel = SimpleNamespace(fused_experts=FakeMethod())
    experts = SimpleNamespace(quant_method=FakeExpertsMethod(kernel))
    renew(experts, SimpleNamespace(quant_method=FakeExpertsMethod(None)))

    assert kernel.fused_experts.processed == [experts]


def test_experts_that_an_update_has_left_out_are_not_packed_again() -> None:
    method = FakeMethod()
    kernel = SimpleNamespace(fused_experts=method)
    layers = [SimpleNamespace(quant_method=FakeExpertsMethod(kernel)) for _ in range(2)]
    renew(*layers, left_out={"0"})

    assert method.processed == layers[1:]


def test_the_view_of_a_convolution_that_has_moved_gets_its_values() -> None:
    copied: list[Any] = []
    moved = SimpleNamespace(_cpu_unpacked_conv_weight="values")
    view = SimpleNamespace(copy_=copied.append)
    renew(
        SimpleNamespace(conv1d=moved, conv_weights=view),
        SimpleNamespace(conv1d=SimpleNamespace(), conv_weights=view),
        SimpleNamespace(conv1d=moved),
    )

    assert copied == ["values"]
