"""Layers that share their weight, after a load. vLLM's modules are fakes here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.tied import EMBEDDING, process_tied


class FakeMethod:
    """vLLM's method of layers that are not quantised."""

    def __init__(self) -> None:
        self.processed: list[Any] = []

    def process_weights_after_loading(self, layer: Any) -> None:
        self.processed.append(layer)


def test_only_layers_that_share_a_weight_and_are_not_quantised_are_processed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, {EMBEDDING: {"UnquantizedEmbeddingMethod": FakeMethod}})
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
    process_tied(SimpleNamespace(modules=lambda: layers))

    assert [each.name for each in method.processed] == ["embed_tokens", "lm_head"]
