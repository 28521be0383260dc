"""Copies of weights that kernels keep, after a load. vLLM's modules are fakes here."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.kernel_copies import renew_copies, unfit_kernel
from fleet_worker.engine.vllm_names import EMBEDDING, EXPERTS, MLA


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


@dataclass
class FakeAttention:
    """vLLM's latent attention."""

    kv_b_proj: Any


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = {
        EMBEDDING: {"UnquantizedEmbeddingMethod": FakeMethod},
        EXPERTS: {"UnquantizedFusedMoEMethod": FakeExpertsMethod},
        MLA: {"MLAAttention": FakeAttention},
    }
    install(monkeypatch, modules)


def renew(*layers: Any, left_out: Collection[str] = ()) -> None:
    """Renew the copies of layers with the names `0`, `1` and so on."""
    names = [(str(number), layer) for number, layer in enumerate(layers)]
    model = SimpleNamespace(modules=lambda: layers, named_modules=lambda: names)
    renew_copies(model, left_out)


def unfit(**layers: Any) -> str | None:
    """Why the layers of these names cannot take over new weights."""
    model = SimpleNamespace(named_modules=layers.items, modules=layers.values)
    return unfit_kernel(model)


def with_weight(elements: int, *, packs: bool) -> Any:
    """A layer, and whether it packs its weight when it is processed."""
    weight = SimpleNamespace(numel=lambda: elements)
    return SimpleNamespace(weight=weight, _cpu_skip_gemm_dispatch=not packs)


UNFIT = [
    pytest.param(
        SimpleNamespace(scheme=SimpleNamespace(kernel=SimpleNamespace(dnnl_handler=1))),
        id="it keeps the address of scales",
    ),
    pytest.param(SimpleNamespace(_zentorch_processed_weights=True), id="it packs once"),
    pytest.param(with_weight(0, packs=False), id="something has freed its weight"),
]


@pytest.mark.parametrize("layer", UNFIT)
def test_a_kernel_that_cannot_take_over_new_weights_is_named(layer: Any) -> None:
    why = unfit(norm=SimpleNamespace(), up_proj=with_weight(8, packs=True), down_proj=layer)

    assert why is not None
    assert "down_proj" in why


def test_kernels_that_pack_and_free_a_weight_at_each_load_are_fit() -> None:
    absorbed = with_weight(0, packs=False)
    wrapped = SimpleNamespace(base_layer=with_weight(0, packs=False))
    fit = {
        "packed by its own kernel": with_weight(0, packs=True),
        "in its own layout": with_weight(8, packs=False),
        "kv_b_proj": absorbed,
        "attention": FakeAttention(absorbed),
        "kv_b_proj.base_layer": wrapped.base_layer,
        "attention with adapters": FakeAttention(wrapped),
        "another scheme": SimpleNamespace(scheme=SimpleNamespace(kernel=SimpleNamespace())),
    }

    assert unfit(**fit) is None


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
