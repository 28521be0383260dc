"""Whether a configuration computes what the running model's does.

Trainers write more into config.json than what computes: bookkeeping, defaults of requests, and keys that
only they know. All are left out first (`used`), so that nothing below knows them.

The configurations are then compared after transformers has filled in their defaults. Some values decide
how large a configuration becomes (`num_hidden_layers` makes a list), and a nested
`model_type` adds a whole configuration. So these values are compared before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fleet_worker.checkpoint.config_code import ConfigCode
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

BOOKKEEPING = frozenset(
    {
        "_attn_implementation",
        "_attn_implementation_autoset",
        "_commit_hash",
        "_name_or_path",
        "attn_implementation",
        "auto_map",  # the running model's code is used; a checkpoint cannot bring its own
        "chunk_size_feed_forward",
        "dtype",  # the tensors' own types are compared
        "torch_dtype",
        "use_bfloat16",
        "id2label",
        "label2id",
        "num_labels",  # the shape of the head's tensor is compared
        "output_attentions",
        "output_hidden_states",
        "problem_type",
        "return_dict",
        "torchscript",
        "transformers_version",
        "use_cache",
        # These matter to trainers only.
        "activation_dropout",
        "base_model",
        "epoch",
        "gradient_checkpointing_kwargs",
        "ignore_index",
        "keys_to_ignore_at_inference",
        "language",
        "loss_type",
        "model_name",
        "padding_side",
        "seed",
        "tags",
        "use_flash_attention_2",
        "attention_dropout",
        "attention_probs_dropout_prob",
        "attn_pdrop",
        "classifier_dropout",
        "dropout",
        "embd_pdrop",
        "gradient_checkpointing",
        "hidden_dropout",
        "hidden_dropout_prob",
        "initializer_range",
        "output_router_logits",
        "resid_pdrop",
        "router_aux_loss_coef",
        # The running server's own tokenizer, processor and end tokens are used.
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "processor_class",
        "sep_token_id",
        "tokenizer_class",
    }
)
"""Keys that do not change the computation."""
SAMPLING = (
    "frequency_penalty",
    "max_new_tokens",
    "min_p",
    "presence_penalty",
    "repetition_penalty",
    "temperature",
    "top_k",
    "top_p",
)
"""The keys from which vLLM takes defaults of requests. Nested keys of these names are others.

Source: `ModelConfig.get_diff_sampling_param` of vLLM.
"""
_NO_SIZES = frozenset({"sliding_window"})
"""Keys of large numbers that size nothing. The Hub's files of Qwen2 have one that transformers drops."""
LARGE = 10_000
"""Numbers up to this make no configuration of transformers 5 larger than 40 MiB (measured, all types)."""


class Used(NamedTuple):
    """The part of a configuration that may compute.

    Fields:
        config: the configuration without bookkeeping and without `unread_keys`.
        unread_keys: key that no code reads → its value; a nested key with dots.
    """

    config: dict[str, Any]
    unread_keys: dict[str, Any]


def used(config: Mapping[str, Any], code: ConfigCode) -> Used:
    """Return the part of a configuration that may compute.

    Remarks name the defaults of requests that are left out. Keys that no code reads are left out only where keys are names: in the configuration, and in those
    nested in it. Other objects, such as `quantization_config`, have keys that are data.
    """
    kept, unread_keys = dict[str, Any](), dict[str, Any]()
    levels: list[tuple[str | None, Mapping[str, Any], dict[str, Any]]] = [("", config, kept)]
    while levels:  # a loop, because a configuration may be nested deeper than Python's stack
        around, source, target = levels.pop()
        for key, value in source.items():
            if key in BOOKKEEPING or (around == "" and key in SAMPLING):
                continue
            if around is not None and not code.could_read(key):
                unread_keys[around + key] = value
            elif isinstance(value, Mapping):
                is_configuration = around is not None and key in code.nested
                target[key] = {}
                levels.append((f"{around}{key}." if is_configuration else None, value, target[key]))
            else:
                target[key] = value
    return Used(kept, unread_keys)


class Size(NamedTuple):
    """A value that decides how large a configuration becomes.

    Fields:
        key: its key, and for a model type the one around it. Releases of transformers write the same
            number at different places (`rope_theta`), so the place of a number does not count.
        depth: number of objects and lists around a model type; 0 for a number.
    """

    key: str
    depth: int
    value: Any


def sizes_of(config: Mapping[str, Any]) -> Iterator[Size]:
    """Yield the model types and the large numbers of a configuration."""
    levels: list[Iterator[tuple[str, str, Any]]] = [_entries("", config)]
    while levels:  # a loop, as in `used`
        entry = next(levels[-1], None)
        if entry is None:
            levels.pop()
            continue
        around, key, value = entry
        if isinstance(value, Mapping):
            levels.append(_entries(key, value))
        elif isinstance(value, list | tuple):
            levels.append(_items(around, key, value))
        elif key == "model_type" and value is not None:
            yield Size(f"{around}.{key}" if around else key, len(levels), value)
        elif isinstance(value, int | float) and abs(value) > LARGE and key not in _NO_SIZES:
            yield Size(key, 0, value)


def _entries(around: str, config: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    return ((around, key, value) for key, value in config.items())


def _items(around: str, key: str, values: Iterable[Any]) -> Iterator[tuple[str, str, Any]]:
    return ((around, key, value) for value in values)


_REMEDY = "Leave out a key that does not compute, or start the fleet on a model with the values of the checkpoint"


def check_sizes(known: frozenset[Size], offered: Mapping[str, Any]) -> None:
    """Refuse a configuration that may become larger than the running model's.

    Args:
        known: Sizes of the running model's configuration, as its file has them and normalised.
        offered: Configuration of the checkpoint, as its file has it.

    Errors:
        Refusal: `CheckpointMismatch`, naming the key and the value.
    """
    for size in sizes_of(offered):
        if size not in known:
            same = sorted({shown(k.value) for k in known if k[:2] == size[:2]})
            running = " or ".join(same) or f"no number above {LARGE}"
            raise Refusal(
                Reason.CHECKPOINT_MISMATCH,
                f"config.json differs: {size.key[:200]} is {shown(size.value)} where the running model"
                f" has {running}. {_REMEDY}",
            )


_EXAMPLES = 3


class Difference(NamedTuple):
    """A key with two values. A nested key has dots."""

    key: str
    running: Any
    offered: Any


def check_config(reference: Mapping[str, Any], offered: Mapping[str, Any]) -> None:
    """Refuse a configuration that computes something other than the running one.

    Both are normalised in the same way (defaults filled in). Errors: Refusal `CheckpointMismatch`, naming the keys.
    """
    different = config_differences(reference, offered)
    if not different:
        return
    # A different architecture explains the keys that follow from it, so it comes first.
    different.sort(key=lambda each: (each.key not in ("architectures", "model_type"), each.key))
    listed = "; ".join(
        f"{each.key} is {shown(each.offered)} where the running model has {shown(each.running)}"
        for each in different[:_EXAMPLES]
    )
    more = f" (and {len(different) - _EXAMPLES} more)" if len(different) > _EXAMPLES else ""
    raise Refusal(
        Reason.CHECKPOINT_MISMATCH,
        f"config.json differs: {listed}{more}. {_REMEDY}",
    )


def config_differences(
    reference: Mapping[str, Any], offered: Mapping[str, Any]
) -> list[Difference]:
    """Return the keys whose values differ. `null` equals absent."""
    different: list[Difference] = []
    for key in sorted(set(reference) | set(offered)):
        ours, theirs = reference.get(key), offered.get(key)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            inner = config_differences(ours, theirs)
            different += [each._replace(key=f"{key}.{each.key}") for each in inner]
        elif ours != theirs:
            different.append(Difference(key, ours, theirs))
    return different


def shown(value: Any) -> str:
    """Return a value as messages show it: JSON of at most 100 characters."""
    try:
        text = json.dumps(value, default=str)
    except RecursionError:
        return "…"
    return text if len(text) <= 100 else text[:99] + "…"
