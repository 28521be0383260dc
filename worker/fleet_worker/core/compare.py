"""Whether a checkpoint fits the running model: same configuration, same tensors.

The reference is the checkpoint that the engine started from, not the engine's parameters: vLLM
fuses and renames them (q, k and v become one `qkv_proj`; on CPU the packed linear layers have no
shape at all), and how it does so is its own matter. Which parameters a load writes depends on the
names, shapes and types of the tensors alone. Hence: the same as the reference's ⇒ a load writes
what the start has written, and all of each. That the start wrote everything is looked at by every
load (`WorkerExtension`); vLLM itself looks at a part of the parameters only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason

# What says nothing about the computation. Everything else must be equal: a rotation base or an
# epsilon that differs changes no shape, loads without a word and computes something else.
IGNORED_CONFIG_KEYS = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "auto_map",  # code is the running model's; a checkpoint cannot bring its own
        "chunk_size_feed_forward",
        "dtype",  # the tensors' own types are compared
        "torch_dtype",
        "id2label",
        "label2id",
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torchscript",
        "transformers_version",
        "use_cache",
        # Dropout and initialisation matter to trainers only.
        "attention_dropout",
        "hidden_dropout",
        "initializer_range",
        "router_aux_loss_coef",
        "output_router_logits",
        # Which tokens end a text is the running server's matter, as is its tokenizer.
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
)
_EXAMPLES = 3


def check_config(reference: Mapping[str, Any], offered: Mapping[str, Any]) -> None:
    """Refuse a configuration that would compute something else than the running one.

    Args:
        reference: Configuration of the running model, normalised (defaults filled in).
        offered: The checkpoint's, normalised in the same way.

    Errors:
        Refusal: `CheckpointMismatch`, naming the keys.
    """
    different = config_differences(reference, offered)
    if not different:
        return
    # The architecture says more than the twenty keys that follow from it.
    different.sort(key=lambda key: (key not in ("architectures", "model_type"), key))
    shown = "; ".join(
        f"{key} is {_short(offered.get(key))} where the running model has"
        f" {_short(reference.get(key))}"
        for key in different[:_EXAMPLES]
    )
    more = f" (and {len(different) - _EXAMPLES} more)" if len(different) > _EXAMPLES else ""
    raise Refusal(Reason.CHECKPOINT_MISMATCH, f"config.json differs: {shown}{more}")


def config_differences(reference: Mapping[str, Any], offered: Mapping[str, Any]) -> list[str]:
    """Keys whose values differ, nested ones with dots; `null` and absent are the same."""
    different: list[str] = []
    for key in sorted(set(reference) | set(offered)):
        if key in IGNORED_CONFIG_KEYS:
            continue
        ours, theirs = reference.get(key), offered.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            different += [f"{key}.{inner}" for inner in config_differences(ours, theirs)]
        elif ours != theirs:
            different.append(key)
    return different


def check_tensors(reference: Mapping[str, TensorSpec], offered: Mapping[str, TensorSpec]) -> None:
    """Refuse a checkpoint whose tensors are not exactly the running model's.

    Errors:
        Refusal: `CheckpointMismatch`, with counts and an example of the first kind of difference:
            missing, extra, shape, type.
    """
    both = [name for name in reference if name in offered]
    checks = (
        ("lacks {n} tensors of the running model", [n for n in reference if n not in offered]),
        (
            "has {n} tensors that the running model lacks",
            [n for n in offered if n not in reference],
        ),
        (
            "has {n} tensors of other shapes",
            [n for n in both if offered[n].shape != reference[n].shape],
        ),
        (
            "has {n} tensors of other types",
            [n for n in both if offered[n].dtype != reference[n].dtype],
        ),
    )
    for words, names in checks:
        if names:
            example = min(names)
            raise Refusal(
                Reason.CHECKPOINT_MISMATCH,
                f"the checkpoint {words.format(n=len(names))}, such as {_short(example)}:"
                f" {_described(offered.get(example))} where the running model has"
                f" {_described(reference.get(example))}",
            )


def _described(spec: TensorSpec | None) -> str:
    return "none" if spec is None else f"{spec.dtype} {list(spec.shape)}"


def _short(value: Any) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 100 else text[:99] + "…"
