"""Whether a checkpoint fits the running model."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.support.refusals import refusal_from
from tests.support.tiny import TinyInspector, write_tiny

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.config_code import ConfigCode
from fleet_worker.checkpoint.configuration import (
    BOOKKEEPING,
    LARGE,
    SAMPLING,
    Difference,
    Used,
    check_config,
    check_sizes,
    config_differences,
    sizes_of,
    used,
)
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.opening import open_checkpoint
from fleet_worker.checkpoint.reference import Reference
from fleet_worker.checkpoint.tensors import cast_types, check_tensors
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
    refusal = refusal_from(check_config, RUNNING, RUNNING | changes)
    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    return refusal


def test_the_same_configuration_fits() -> None:
    check_config(RUNNING, dict(RUNNING))


EVERY_KEY = ConfigCode()
CODE = ConfigCode(frozenset({"text_config"}), frozenset({*RUNNING, "text_config", "head_dim"}))
"""The code of a model that reads the keys of `RUNNING`, a nested configuration, and `head_dim` in it."""


@pytest.mark.parametrize("key", sorted(BOOKKEEPING))
def test_keys_that_do_not_affect_the_computation_are_left_out_at_any_depth(key: str) -> None:
    nested = {"quantization_config": {"bits": 8}, "text_config": {"head_dim": 16}}
    noted = {name: inner | {key: 2} for name, inner in nested.items()}

    assert used(RUNNING | noted | {key: 10**9}, EVERY_KEY) == Used(RUNNING | nested, {})


@pytest.mark.parametrize("key", SAMPLING)
def test_defaults_of_requests_are_left_out_where_vllm_reads_them(key: str) -> None:
    nested = {"text_config": {key: 2}}

    assert used(RUNNING | nested | {key: 0.5}, EVERY_KEY) == Used(RUNNING | nested, {})


@pytest.mark.parametrize(
    ("changes", "kept", "unread"),
    [
        pytest.param({"unsloth_fixed": True}, {}, {"unsloth_fixed": True}, id="a trainer's key"),
        pytest.param({"total_flos": 1e18}, {}, {"total_flos": 1e18}, id="a large number"),
        pytest.param({"a": {"b": {}}}, {}, {"a": {"b": {}}}, id="an object"),
        pytest.param(
            {"transformers.js_config": 1}, {}, {"transformers.js_config": 1}, id="no name of code"
        ),
        pytest.param(
            {"text_config": {"head_dim": 16, "unsloth_fixed": True}},
            {"text_config": {"head_dim": 16}},
            {"text_config.unsloth_fixed": True},
            id="in a nested configuration",
        ),
        pytest.param(
            {"rope_parameters": {"beta_fast": 32}},
            {"rope_parameters": {"beta_fast": 32}},
            {},
            id="in another object, whose keys are data",
        ),
        pytest.param(
            {"text_config": {"rope_parameters": {"beta_fast": 32}}},
            {"text_config": {"rope_parameters": {"beta_fast": 32}}},
            {},
            id="in an object of a nested configuration",
        ),
        pytest.param({"hidden_size": 8}, {"hidden_size": 8}, {}, id="a key of the code"),
        pytest.param({"": 8, "-": 9}, {"": 8, "-": 9}, {}, id="no words to look for"),
    ],
)
def test_keys_that_no_code_reads_are_left_out(
    changes: dict[str, Any], kept: dict[str, Any], unread: dict[str, Any]
) -> None:
    assert used(RUNNING | changes, CODE) == Used(RUNNING | kept, unread)


def test_without_a_sight_of_the_code_every_key_counts() -> None:
    changed = RUNNING | {"unsloth_fixed": True}

    assert used(changed, EVERY_KEY) == Used(changed, {})


def test_keys_are_left_out_of_a_configuration_of_any_depth() -> None:
    nested: dict[str, Any] = {"dtype": "bfloat16"}
    for _ in range(5_000):
        nested = {"text_config": nested}
    kept, _ = used(nested, CODE)
    depth = 0
    while kept:
        kept, depth = kept["text_config"], depth + 1

    assert depth == 5_000


def test_null_equals_an_absent_key() -> None:
    without = {key: value for key, value in RUNNING.items() if key != "sliding_window"}

    assert config_differences(RUNNING, without) == []


def test_a_key_that_changes_the_computation_is_refused() -> None:
    assert "rms_norm_eps is 1e-05" in refusal_of_config(rms_norm_eps=1e-5).message


def test_nested_differences_are_named_with_dots() -> None:
    rope = {"rope_theta": 5000.0, "rope_type": "default"}

    changed = RUNNING | {"rope_parameters": rope}
    assert config_differences(RUNNING, changed) == [
        Difference("rope_parameters.rope_theta", 10000.0, 5000.0)
    ]
    assert "rope_theta is 5000.0 where the running model has 10000.0" in (
        refusal_of_config(rope_parameters=rope).message
    )


def test_a_different_architecture_is_named_first() -> None:
    message = refusal_of_config(
        architectures=["LlamaForCausalLM"], a=1, b=2, c=3, hidden_size=1
    ).message

    assert message.startswith('config.json differs: architectures is ["LlamaForCausalLM"]')
    assert "(and 2 more)" in message


def test_long_values_are_truncated_in_messages() -> None:
    assert len(refusal_of_config(hidden_size=list(range(1000))).message) < 300


def test_values_that_are_nested_too_deeply_to_be_shown_are_refused_all_the_same() -> None:
    nested: list[Any] = []
    for _ in range(5_000):
        nested = [nested]

    assert "hidden_size is …" in refusal_of_config(hidden_size=nested).message


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
    refusal = refusal_from(check_sizes, frozenset(sizes_of(MULTIMODAL)), MULTIMODAL | changes)

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert f"{key} is {json.dumps(value)} " in refusal.message
    assert "start the fleet on a model with the values" in refusal.message


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="the same"),
        pytest.param({"num_labels": LARGE}, id="a number of no weight"),
        pytest.param({"rope_parameters": {"rope_theta": 5_000_000}}, id="a number that has moved"),
        pytest.param({"model_type": None}, id="no model type"),
        pytest.param({"sliding_window": 32768}, id="a window, which transformers drops"),
    ],
)
def test_other_values_do_not_make_a_configuration_larger(changes: dict[str, Any]) -> None:
    check_sizes(frozenset(sizes_of(MULTIMODAL)), MULTIMODAL | changes)


def test_sizes_are_found_at_any_depth() -> None:
    nested: dict[str, Any] = {"num_labels": 10**6}
    for _ in range(5_000):
        nested = {"a": [nested]}

    assert [(size.key, size.value) for size in sizes_of(nested)] == [("num_labels", 10**6)]


def test_defaults_are_filled_in_only_after_the_sizes_were_compared(tmp_path: Path) -> None:
    inspector = FillingInspector()
    reference = Reference.of(open_tiny(tmp_path / "model"), inspector)
    reference.check(open_tiny(tmp_path / "1", vocab_size=151936), inspector)
    with pytest.raises(Refusal, match="num_hidden_layers"):
        reference.check(open_tiny(tmp_path / "2", num_hidden_layers=10**9), inspector)

    assert [config.get("num_hidden_layers") for config in inspector.filled] == [None, None]


@dataclass
class FillingInspector(TinyInspector):
    """Fills in a default that is a large number."""

    filled: list[dict[str, Any]] = field(default_factory=list)

    def normalised_config(self, config: dict[str, Any], code: ConfigCode) -> dict[str, Any]:
        self.filled.append(config)
        return {**config, "vocab_size": 151936}


def test_a_large_number_that_no_code_reads_does_not_matter(tmp_path: Path) -> None:
    inspector = TinyInspector(code=ConfigCode(names=frozenset({"architectures", "model_type"})))
    reference = Reference.of(open_tiny(tmp_path / "model"), inspector)
    checkpoint = open_tiny(tmp_path / "1", total_flos=10**18)
    reference.check(checkpoint, inspector)

    (remark,) = checkpoint.remarks
    assert '"total_flos"' in remark


def open_tiny(directory: Path, **config: Any) -> Checkpoint:
    checkpoint = open_checkpoint(str(write_tiny(directory, **config)), None)
    checkpoint.close()
    return checkpoint


@pytest.mark.parametrize(
    ("offered", "count", "example"),
    [
        pytest.param(tensors(a=("BF16", (2, 2))), "2 tensors", "b", id="missing"),
        pytest.param(MODEL | tensors(d=("F32", (1,))), "1 tensor ", "d", id="extra"),
        pytest.param(MODEL | tensors(a=("BF16", (4, 1))), "1 tensor ", "a", id="shape"),
        pytest.param(MODEL | tensors(b=("F8_E4M3", (4,))), "1 tensor ", "b", id="a scaled type"),
        pytest.param(MODEL | tensors(b=("I16", (4,))), "1 tensor ", "b", id="whole numbers"),
    ],
)
def test_different_tensors_are_refused_with_their_count_and_an_example(
    offered: dict[str, TensorSpec], count: str, example: str
) -> None:
    refusal = refusal_from(check_tensors, MODEL, offered)

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert count in refusal.message
    assert f'"{example}"' in refusal.message


@pytest.mark.parametrize("served", ["BF16", "F16", "F32", "F64"])
@pytest.mark.parametrize("found", ["BF16", "F16", "F32", "F64"])
def test_tensors_of_another_floating_type_are_cast_to_the_running_models(
    found: str, served: str
) -> None:
    model = tensors(a=(served, (2, 2)), b=("I8", (4,)), c=("F32", (1,)))
    offered = tensors(a=(found, (2, 2)), b=("I8", (4,)), c=("F32", (1,)))

    assert check_tensors(model, offered) == ({} if found == served else {"a": served})


@pytest.mark.parametrize("served", ["F8_E4M3", "I8"])
def test_a_floating_type_is_not_cast_to_one_with_scales(served: str) -> None:
    with pytest.raises(Refusal, match="cannot be cast"):
        check_tensors(tensors(a=(served, (2,))), tensors(a=("F32", (2,))))


def test_what_is_cast_is_counted_by_types() -> None:
    offered = tensors(a=("F32", (1,)), b=("F32", (1,)), c=("F64", (1,)))

    assert cast_types({"a": "BF16", "b": "BF16", "c": "F32"}, offered) == (
        "2 tensors from F32 to BF16, 1 tensor from F64 to F32"
    )


NAMES = ("model.layers.0.self_attn.q_proj.weight", "model.module.norm.weight", "lm_head.weight")


@pytest.mark.parametrize(
    ("wrap", "parts", "remedy"),
    [
        pytest.param("module.{}", ["module."], "model.module", id="DDP"),
        pytest.param("_orig_mod.{}", ["_orig_mod."], "model._orig_mod", id="compile"),
        pytest.param(
            "module._orig_mod.{}", ["module.", "_orig_mod."], "model._orig_mod", id="both"
        ),
        pytest.param("module.module.{}", ["module."], "model.module", id="twice"),
        pytest.param("_fsdp_wrapped_module.{}", ["_fsdp_wrapped_module."], "FSDP", id="FSDP"),
        pytest.param("base_model.model.{}", ["base_model.model."], "merge_and_unload", id="PEFT"),
    ],
)
def test_names_with_what_a_wrapper_adds_are_refused_with_it_and_the_remedy(
    wrap: str, parts: list[str], remedy: str
) -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    wrapped = {wrap.format(name): spec for name, spec in model.items()}
    refusal = refusal_from(check_tensors, model, wrapped)

    assert refusal.reason is Reason.CHECKPOINT_MISMATCH
    assert [part for part in parts if f'"{part}"' not in refusal.message] == []
    assert remedy in refusal.message


@pytest.mark.parametrize("prefix", ["_forward_module.", "actor.", "model.model.", "a.b."])
def test_names_behind_any_common_prefix_are_refused_with_it(prefix: str) -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    behind = {f"{prefix}{name}": spec for name, spec in model.items()}
    refusal = refusal_from(
        check_tensors, model, behind | tensors(**{"v_head.weight": ("BF16", (1,))})
    )
    with pytest.raises(Refusal) as incomplete:
        check_tensors(model, dict(list(behind.items())[1:]))

    assert f'with "{prefix}" in front' in refusal.message
    assert "in front" not in incomplete.value.message


def test_the_outer_wrapper_is_unwrapped_first() -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    with pytest.raises(Refusal, match=r"model\.module, and .*model\._orig_mod"):
        check_tensors(model, {f"module._orig_mod.{name}": s for name, s in model.items()})


def test_a_wrapper_inside_the_part_of_another_one_is_found() -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    with pytest.raises(Refusal, match=r'"_orig_mod\."'):
        check_tensors(model, {f"base_model._orig_mod.model.{n}": s for n, s in model.items()})


def test_a_wrapper_within_the_names_is_found(tmp_path: Path) -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    wrapped = {name.replace("layers.0", "layers.0._orig_mod"): s for name, s in model.items()}
    with pytest.raises(Refusal, match=r'"_orig_mod\."'):
        check_tensors(model, wrapped)


def test_names_of_another_model_are_not_called_wrapped() -> None:
    model = tensors(**dict.fromkeys(NAMES, ("BF16", (1,))))
    refusal = refusal_from(
        check_tensors, model, {f"module.other.{name}": spec for name, spec in model.items()}
    )

    assert "unwrap" not in refusal.message
