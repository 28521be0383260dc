"""The parameters that a load writes, must write, or only seems to write. vLLM is a fake here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.fake_modules import install

from fleet_worker.engine.vllm_names import LAYERWISE, META
from fleet_worker.engine.written import Recorder, required


def _sized(size: int, *, is_meta: bool = False) -> Any:
    return SimpleNamespace(is_meta=is_meta, numel=lambda: size)


@dataclass
class FakeLayer:
    """A layer during a reload.

    Fields:
        sizes: parameter → number of elements.
        kept: parameters of which loaders keep values.
        made: parameter → number of elements when the layer was made.
    """

    sizes: dict[str, int]
    kept: list[str] = field(default_factory=list)
    made: dict[str, int] = field(default_factory=dict)
    reloads: bool = True

    def can_load(self) -> bool:
        return self.reloads

    @property
    def loaded_weights(self) -> list[tuple[str, Any]]:
        return [(name, None) for name in self.kept]

    @property
    def restore_metadata(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {name: _sized(size) for name, size in self.made.items()}, {}

    def named_parameters(self, *, recurse: bool) -> Iterator[tuple[str, Any]]:
        assert not recurse
        for name, size in self.sizes.items():
            yield name, _sized(size, is_meta=self.reloads)


@dataclass
class FakeModel:
    layers: dict[str, FakeLayer]
    names: set[str] | None

    def named_modules(self) -> Iterator[tuple[str, FakeLayer]]:
        yield from self.layers.items()

    def named_parameters(self) -> Iterator[tuple[str, Any]]:
        for prefix, layer in self.layers.items():
            for name, parameter in layer.named_parameters(recurse=False):
                yield f"{prefix}.{name}", parameter

    def load_weights(self, weights: Any) -> set[str] | None:
        assert weights == "weights"
        return self.names


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    members = {"get_layerwise_info": lambda layer: layer}
    install(monkeypatch, {LAYERWISE: members, META: {"SKIP_TENSORS": {"bias"}}})


def test_a_parameter_that_is_named_as_written_and_has_no_values_fails_the_load() -> None:
    attention = FakeLayer({"weight": 8, "sinks": 8}, kept=["weight"])
    model = FakeModel({"attn": attention}, {"attn.weight", "attn.sinks"})
    recorder = Recorder(model, is_whole=True)

    with pytest.raises(RuntimeError, match=r"attn\.sinks"):
        model.load_weights("weights")
    recorder.remove()
    assert model.load_weights("weights") == model.names


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(FakeLayer({"sinks": 8}, kept=["sinks"]), id="kept by its loader"),
        pytest.param(FakeLayer({"sinks": 8}, reloads=False), id="finished"),
        pytest.param(FakeLayer({"other": 8}), id="not written"),
    ],
)
def test_other_parameters_do_not_fail_the_load(layer: FakeLayer) -> None:
    model = FakeModel({"attn.base_layer": layer}, {"attn.sinks"})
    recorder = Recorder(model, is_whole=True)

    assert model.load_weights("weights") == {"attn.sinks"}
    assert recorder.written == {"attn.sinks"}


def test_a_model_that_names_nothing_must_get_values_for_all_that_a_load_must_write() -> None:
    projector = FakeLayer({"weight": 8, "scale": 1, "bias": 8}, kept=["bias"], made={"weight": 8})
    model = FakeModel(
        {"language": FakeLayer({"weight": 8}, kept=["weight"]), "mlp1": projector}, None
    )
    Recorder(model, is_whole=True)

    with pytest.raises(RuntimeError, match=r"1 parameter.*mlp1\.weight"):
        model.load_weights("weights")


def test_a_recovery_to_the_weights_of_the_start_needs_no_names() -> None:
    model = FakeModel({"mlp1": FakeLayer({"weight": 8})}, None)
    recorder = Recorder(model, is_whole=True, may_lose=True)
    model.load_weights("weights")

    assert recorder.left_out == {"mlp1"}


def test_the_calls_of_a_transfer_are_checked_at_its_end() -> None:
    layer = FakeLayer({"sinks": 8})
    model = FakeModel({"attn": layer}, {"attn.sinks"})
    recorder = Recorder(model, is_whole=False)
    model.load_weights("weights")

    with pytest.raises(RuntimeError, match=r"attn\.sinks"):
        recorder.look()


def test_layers_without_weights_are_known_at_the_end() -> None:
    layers = {
        "left out": FakeLayer({"weight": 8}),
        "finished": FakeLayer({"weight": 8}, reloads=False),
        "partly": FakeLayer({"weight": 8, "bias": 8}, kept=["bias"]),
    }
    model = FakeModel(layers, {"left out.weight"})
    recorder = Recorder(model, is_whole=True, may_lose=True)
    model.load_weights("weights")

    assert recorder.left_out == {"left out"}


def test_all_calls_count_as_one_load() -> None:
    model = FakeModel({}, {"one"})
    recorder = Recorder(model, is_whole=False)
    for names in ({"one"}, None, {"two"}):
        model.names = names
        model.load_weights("weights")

    assert recorder.written == {"one", "two"}


def test_a_load_must_write_what_its_layers_had_when_they_were_made() -> None:
    layer = FakeLayer(
        {"weight": 8, "freed": 0, "scale": 1, "W_UV": 8, "bias": 8},
        made={"weight": 8, "freed": 8, "scale": 1},
    )

    found = required(FakeModel({"a.base_layer": layer}, None))
    assert found == {"a.weight", "a.freed", "a.bias"}
