"""Whether a checkpoint fits the running model."""

from __future__ import annotations

from typing import Any

import pytest

from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.reference import (
    IGNORED_CONFIG_KEYS,
    check_config,
    check_tensors,
    config_differences,
)
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
