"""Check that a LoRA adapter's directory fits the running model.

PEFT writes `adapter_config.json` and `adapter_model.safetensors`. For each adapted module the latter
holds `lora_A` of shape [rank, inputs] and `lora_B` of shape [outputs, rank]. vLLM accepts wrong
inner shapes without an error, and computes only plain LoRA of all that PEFT offers.

Source: `PEFTHelper` and `LoRAModel.from_local_checkpoint` of vLLM; PEFT's `LoraConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.weight_sets import ADAPTER_WEIGHTS_FILE
from fleet_worker.errors import Refusal
from fleet_worker.lora.scale import is_quick, pattern_of, rank_of
from fleet_worker.protocol import Reason

ADAPTER_CONFIG_FILE = "adapter_config.json"

_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_FLOATS = ("F32", "F16", "BF16")
_LARGEST = 3.4e38
"""Largest scale: beyond the range of the engine's numbers the product would be infinite."""
# The engine computes them.
_COMPUTED = {"alpha_pattern", "lora_alpha", "r", "rank_pattern", "target_modules", "use_rslora"}
# They change training only, or which tensors there are, and the tensors are checked.
_WITHOUT_EFFECT = {
    "auto_mapping",
    "base_model_name_or_path",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "megatron_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_parameters",
    "task_type",
}
_CHECKED = {"bias", "init_lora_weights", "peft_type"}
_KNOWN = _COMPUTED | _WITHOUT_EFFECT | _CHECKED
# The initialisations of adapters that leave the model's own weights as they are. That of LoRA-GA does not,
# although vLLM accepts it: the trainer's model differs from the served one.
_PLAIN_INITS = ("gaussian", "eva", "orthogonal", "mica")
_MAX_NAMED = 10


def check_weights_there(names: Collection[str]) -> None:
    """Refuse a directory without weights in safetensors.

    Errors:
        Refusal: `SourceNotFound`, or `CheckpointMalformed` for pickled weights.
    """
    if ADAPTER_WEIGHTS_FILE in names:
        return
    if any(name.startswith("adapter_model.") for name in names):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            "the adapter's weights are pickled; save them as safetensors: the worker opens no"
            " pickles, because reading one runs its code",
        )
    raise Refusal(Reason.SOURCE_NOT_FOUND, f"the directory has no {ADAPTER_WEIGHTS_FILE}")


def check_adapter_config(config: Mapping[str, Any], *, max_rank: int) -> None:
    """Refuse with `CheckpointMismatch` or `CheckpointMalformed` a configuration that the engine cannot compute.

    `max_rank`: the largest rank of the engine's slots.
    """
    kind = config.get("peft_type", "LORA")
    if kind != "LORA":
        raise Refusal(Reason.CHECKPOINT_MISMATCH, f"the adapter is {str(kind)[:40]}, not LORA")
    # An unknown key may change the adapter's result, so it may be there only if it is not set.
    used = sorted(key[:40] for key, value in config.items() if value and key not in _KNOWN)
    if config.get("bias", "none") != "none":
        used.append("bias")
    init = config.get("init_lora_weights")
    if not (init is None or isinstance(init, bool) or str(init).lower() in _PLAIN_INITS):
        used.append(f"init_lora_weights {str(init)[:40]}")
    if used:
        raise Refusal(
            Reason.CHECKPOINT_MISMATCH,
            "the adapter uses features that the engine does not compute:"
            f" {', '.join(used[:_MAX_NAMED])}; train or save it as plain LoRA, or remove a key that"
            f" changes nothing from {ADAPTER_CONFIG_FILE}",
        )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not _is_rank(rank) or not _is_number(alpha):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{ADAPTER_CONFIG_FILE} needs a rank `r` (an integer above 0) and a number `lora_alpha`",
        )
    if "target_modules" not in config:
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{ADAPTER_CONFIG_FILE} has no `target_modules`")
    _check_patterns(config, "alpha_pattern", _is_number, "numbers")
    _check_patterns(config, "rank_pattern", _is_rank, "ranks")
    ranks = [rank, *(config.get("rank_pattern") or {}).values()]
    if max(ranks) > max_rank:
        raise Refusal(
            Reason.CHECKPOINT_MISMATCH,
            f"the adapter has rank {max(ranks)}, the worker's largest is {max_rank}"
            " (spec.adapters.maxRank, --max-lora-rank)",
        )


def check_adapter_tensors(
    reference: Mapping[str, TensorSpec],
    offered: Mapping[str, TensorSpec],
    config: Mapping[str, Any],
) -> None:
    """Refuse with `CheckpointMismatch` tensors that do not fit those of the model that the engine started from.

    `config`: that of the adapter, checked.
    """
    pairs: dict[str, dict[str, TensorSpec]] = {}
    for name, spec in offered.items():
        found = _TENSOR.fullmatch(name)
        if found is None or len(spec.shape) != 2 or spec.dtype not in _FLOATS:
            raise _mismatch(f"{name[:200]} is not a matrix of a plain LoRA")
        sides = pairs.setdefault(found["module"], {})
        if sides.setdefault(found["side"], spec) is not spec:
            raise _mismatch(f"{name[:200]} occurs twice, with and without base_model.model")
    if not pairs:
        raise _mismatch("it adapts no module")
    for module, sides in sorted(pairs.items()):
        base = reference.get(f"{module}.weight")
        if base is None or len(base.shape) != 2:
            raise _mismatch(f"{module[:200]} is not in the running model")
        if len(sides) < 2:
            raise _mismatch(f"{module} has only one of lora_A and lora_B")
        outputs, inputs = base.shape
        rank = rank_of(config, module)
        if (sides["A"].shape, sides["B"].shape) != ((rank, inputs), (outputs, rank)):
            raise _mismatch(
                f"{module} has the shapes {list(sides['A'].shape)} and {list(sides['B'].shape)}"
                f", the running model needs [{rank}, {inputs}] and [{outputs}, {rank}]"
            )


def _is_number(value: Any) -> bool:
    # Python's JSON parser accepts NaN and Infinity, which would spoil the adapter's whole output.
    return type(value) in (int, float) and abs(value) <= _LARGEST


def _is_rank(value: Any) -> bool:
    return type(value) is int and value > 0


def _check_patterns(
    config: Mapping[str, Any], key: str, is_valid: Callable[[Any], bool], values: str
) -> None:
    patterns = config.get(key) or {}
    if not isinstance(patterns, Mapping) or not all(map(is_valid, patterns.values())):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{key} must map patterns to {values}")
    for text in patterns:
        if not is_quick(text):
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED,
                f"{key} has a pattern that may match too slowly: {text[:100]}. Use at most three"
                " repeats (*, +, ?, {) and no repeated group",
            )
        try:
            pattern_of(text)
        except (re.error, OverflowError, RecursionError) as error:
            raise Refusal(
                Reason.CHECKPOINT_MALFORMED,
                f"{key} has an invalid regular expression: {text[:100]}",
            ) from error


def _mismatch(detail: str) -> Refusal:
    return Refusal(Reason.CHECKPOINT_MISMATCH, f"the adapter does not fit: {detail}")
