"""Whether a checkpoint fits the running model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny import TinyInspector, write_tiny

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.configuration import (
    IGNORED_CONFIG_KEYS,
    LARGE,
    check_config,
    check_sizes,
    config_differences,
    sizes_of,
)
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference, check_tensors
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

RUNNING: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 64,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "sliding_window": None,
}


def tensors(**shapes: tuple[str, tuple[int, ...]]) -> dict[str, TensorSpec]:
    return {name: TensorSpec(name, dtype, shape, 0, 0) for name, (dtype, shape) in shapes.items()}


MODEL = tensors(a=("BF16", (2, 2)), b=("BF16", (4,)), c=("F32", (1,)))


def refusal_of_config(**changes: Any) -> Refusal:
    with pytest.raises(Refusal) as refused:
        check_config(RUNNING, RUNNING | changes)
    assert refused.value.reason is Reason.CHECKPOINT_MISMATCH
    return refused.value


def test_the_same_configuration_fits() -> None:
    check_config(RUNNING, dict(RUNNING))


@pytest.mark.parametrize("key", sorted(IGNORED_CONFIG_KEYS))
def test_keys_that_do_not_affect_the_computation_may_differ(key: str) -> None:
    check_config(RUNNING | {key: 1}, RUNNING | {key: 2})


def test_null_equals_an_absent_key() -> None:
    without = {key: value for key, value in RUNNING.items() if key != "sliding_window"}

    assert config_differences(RUNNING, without) == []


def test_a_key_that_changes_the_computation_is_refused() -> None:
    assert "rms_norm_eps is 1e-05" in refusal_of_config(rms_norm_eps=1e-5).message


def test_nested_differences_are_named_with_dots() -> None:
    rope = {"rope_theta": 5000.0, "rope_type": "default"}

    assert config_differences(RUNNING, RUNNING | {"rope_parameters": rope}) == [
        "rope_parameters.rope_theta"
    ]


def test_a_key_that_the_running_model_lacks_is_a_difference() -> None:
    assert "attention_bias" in refusal_of_config(attention_bias=True).message


def test_a_different_architecture_is_named_first() -> None:
    message = refusal_of_config(
        architectures=["LlamaForCausalLM"], a=1, b=2, c=3, hidden_size=1
    ).message

    assert message.startswith('config.json differs: architectures is ["LlamaForCausalLM"]')
    assert "(and 2 more)" in message


def test_long_values_are_truncated_in_messages() -> None:
    assert len(refusal_of_config(hidden_size=list(range(1000))).message) < 300


MULTIMODAL: dict[str, Any] = {
    "model_type": "llava",
    "image_token_id": 151655,
    "rope_theta": 5_000_000.0,
    "eos_token_id": 151643,
    "text_config": {"model_type": "qwen3", "num_hidden_layers": 28},
    "layers": [{"model_type": "conv"}],
}


@pytest.mark.parametrize(
    ("changes", "key", "value"),
    [
        pytest.param({"num_hidden_layers": 10**9}, "num_hidden_layers", 10**9, id="layers"),
        pytest.param({"num_labels": LARGE + 1}, "num_labels", LARGE + 1, id="another key"),
        pytest.param({"depth": -1e9}, "depth", -1e9, id="a number with a point"),
        pytest.param({"depths": [[1, 10**6]]}, "depths", 10**6, id="in a list"),
        pytest.param(
            {"text_config": {"num_labels": 10**6}}, "num_labels", 10**6, id="in a nested object"
        ),
        pytest.param({"num_labels": 151655}, "num_labels", 151655, id="the number of another key"),
        pytest.param({"model_type": "qwen3"}, "model_type", "qwen3", id="another model type"),
        pytest.param(
            {"text_config": {"model_type": "llava"}},
            "text_config.model_type",
            "llava",
            id="another nested model type",
        ),
        pytest.param(
            {"text_config": {"text_config": {"model_type": "qwen3"}}},
            "text_config.model_type",
            "qwen3",
            id="a model type that is nested deeper",
        ),
    ],
)
def test_a_configuration_that_may_grow_beyond_the_running_models_is_refused(
    changes: dict[str, Any], key: str, value: Any
) -> None:
    with pytest.raises(Refusal) as refused:
        check_sizes(frozenset(sizes_of(MULTIMODAL)), MULTIMODAL | changes)

    assert refused.value.reason is Reason.CHECKPOINT_MISMATCH
    assert f"{key} is {json.dumps(value)} " in refused.value.message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the same"),
        pytest.param({"num_labels": LARGE}, id="a number of no weight"),
        pytest.param({"eos_token_id": [151645, 151643]}, id="an ignored key"),
        pytest.param({"rope_parameters": {"rope_theta": 5_000_000}}, id="a number that has moved"),
        pytest.param({"model_type": None}, id="no model type"),
        pytest.param({"sliding_window": 32768}, id="a window, which transformers drops"),
    ],
)
def test_other_values_do_not_make_a_configuration_larger(changes: dict[str, Any]) -> None:
    check_sizes(frozenset(sizes_of(MULTIMODAL)), MULTIMODAL | changes)


def test_sizes_are_found_at_any_depth() -> None:
    nested: dict[str, Any] = {"num_labels": 10**6}
    for _ in range(100_000):
        nested = {"a": [nested]}

    assert [(size.key, size.value) for size in sizes_of(nested)] == [("num_labels", 10**6)]


def test_defaults_are_filled_in_only_after_the_sizes_were_compared(tmp_path: Path) -> None:
    inspector = FillingInspector()
    reference = Reference.of(open_tiny(tmp_path / "model"), inspector)
    reference.check(open_tiny(tmp_path / "1", vocab_size=151936), inspector)
    with pytest.raises(Refusal, match="num_labels"):
        reference.check(open_tiny(tmp_path / "2", num_labels=10**9), inspector)

    assert [config.get("num_labels") for config in inspector.filled] == [None, None]


@dataclass
class FillingInspector(TinyInspector):
    """Fills in a default that is a large number."""

    filled: list[dict[str, Any]] = field(default_factory=list)

    def normalised_config(self, config: dict[str, Any]) -> dict[str, Any]:
        self.filled.append(config)
        return {**config, "vocab_size": 151936}


def open_tiny(directory: Path, **config: Any) -> Checkpoint:
    checkpoint = open_checkpoint(str(write_tiny(directory, **config)), None)
    checkpoint.close()
    return checkpoint


def test_the_same_tensors_fit_in_any_order() -> None:
    check_tensors(MODEL, dict(reversed(MODEL.items())))


@pytest.mark.parametrize(
    ("offered", "count", "example"),
    [
        pytest.param(tensors(a=("BF16", (2, 2))), "2 tensors", "b", id="missing"),
        pytest.param(MODEL | tensors(d=("F32", (1,))), "1 tensor ", "d", id="extra"),
        pytest.param(MODEL | tensors(a=("BF16", (4, 1))), "1 tensor ", "a", id="shape"),
        pytest.param(MODEL | tensors(b=("F16", (4,))), "1 tensor ", "b", id="type"),
    ],
)
def test_different_tensors_are_refused_with_their_count_and_an_example(
    offered: dict[str, TensorSpec], count: str, example: str
) -> None:
    with pytest.raises(Refusal) as refused:
        check_tensors(MODEL, offered)

    assert refused.value.reason is Reason.CHECKPOINT_MISMATCH
    assert count in refused.value.message
    assert f'"{example}"' in refused.value.message
