"""Whether a checkpoint fits the running model."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_worker.core.compare import (
    IGNORED_CONFIG_KEYS,
    check_config,
    check_tensors,
    config_differences,
)
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
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
def test_what_computes_nothing_may_differ(key: str) -> None:
    check_config(RUNNING | {key: 1}, RUNNING | {key: 2})


def test_null_is_the_same_as_absent() -> None:
    without = {key: value for key, value in RUNNING.items() if key != "sliding_window"}

    assert config_differences(RUNNING, without) == []


def test_what_changes_no_shape_but_the_computation_is_refused() -> None:
    assert "rms_norm_eps is 1e-05" in refusal_of_config(rms_norm_eps=1e-5).message


def test_nested_differences_are_named_with_dots() -> None:
    rope = {"rope_theta": 5000.0, "rope_type": "default"}

    assert config_differences(RUNNING, RUNNING | {"rope_parameters": rope}) == [
        "rope_parameters.rope_theta"
    ]


def test_a_key_that_the_running_model_lacks_is_a_difference() -> None:
    assert "attention_bias" in refusal_of_config(attention_bias=True).message


def test_the_architecture_is_named_first_however_much_differs() -> None:
    message = refusal_of_config(
        architectures=["LlamaForCausalLM"], a=1, b=2, c=3, hidden_size=1
    ).message

    assert message.startswith('config.json differs: architectures is ["LlamaForCausalLM"]')
    assert "(and 2 more)" in message


def test_long_values_are_cut_in_messages() -> None:
    assert len(refusal_of_config(hidden_size=list(range(1000))).message) < 300


def test_the_same_tensors_fit_in_any_order() -> None:
    check_tensors(MODEL, dict(reversed(MODEL.items())))


@pytest.mark.parametrize(
    ("offered", "words"),
    [
        pytest.param(
            tensors(a=("BF16", (2, 2))), "lacks 2 tensors of the running model", id="missing"
        ),
        pytest.param(
            MODEL | tensors(d=("F32", (1,))), "has 1 tensors that the running model", id="extra"
        ),
        pytest.param(
            MODEL | tensors(a=("BF16", (4, 1))), "has 1 tensors of other shapes", id="shape"
        ),
        pytest.param(MODEL | tensors(b=("F16", (4,))), "has 1 tensors of other types", id="type"),
    ],
)
def test_tensors_that_differ_are_refused_with_count_and_example(
    offered: dict[str, TensorSpec], words: str
) -> None:
    with pytest.raises(Refusal) as refused:
        check_tensors(MODEL, offered)

    assert refused.value.reason is Reason.CHECKPOINT_MISMATCH
    assert words in refused.value.message
    assert "where the running model has" in refused.value.message
