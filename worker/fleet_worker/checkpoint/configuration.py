"""Whether a configuration fits the running model's.

The configurations are compared after transformers has filled in their defaults. Some values decide how
large a configuration then is (`num_hidden_layers` makes a list, `num_labels` two tables), and a nested
`model_type` adds a whole configuration. So these values are compared before.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

# Keys that do not change the computation. All others must be equal: another rotation base or epsilon
# changes no shape, loads without an error and gives other results.
IGNORED_CONFIG_KEYS = frozenset(
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
        # The running server's own tokenizer and end tokens are used.
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
    }
)
_NO_SIZES = frozenset({"sliding_window"})
"""Keys of large numbers that size nothing. The Hub's files of Qwen2 have one that transformers drops."""
LARGE = 10_000
"""Numbers up to this make no configuration of transformers 5 larger than 40 MiB (measured, all types)."""


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
    """Yield the model types and the large numbers of a configuration, without those of ignored keys."""
    levels: list[Iterator[tuple[str, str, Any]]] = [_entries("", config)]
    while levels:  # a loop, because a configuration may be nested deeper than Python's stack
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
    return ((around, k, value) for k, value in config.items() if k not in IGNORED_CONFIG_KEYS)


def _items(around: str, key: str, values: Iterable[Any]) -> Iterator[tuple[str, str, Any]]:
    return ((around, key, value) for value in values)


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
            running = " or ".join(same) or f"no such value (numbers above {LARGE} are compared)"
            raise Refusal(
                Reason.CHECKPOINT_MISMATCH,
                f"config.json differs: {size.key[:200]} is {shown(size.value)} where the running model"
                f" has {running}",
            )


_EXAMPLES = 3


def check_config(reference: Mapping[str, Any], offered: Mapping[str, Any]) -> None:
    """Refuse a configuration that computes something other than the running one.

    Args:
        reference: Configuration of the running model, normalised (defaults filled in).
        offered: Configuration of the checkpoint, normalised in the same way.

    Errors:
        Refusal: `CheckpointMismatch`, naming the keys.
    """
    different = config_differences(reference, offered)
    if not different:
        return
    # A different architecture explains the keys that follow from it, so it comes first.
    different.sort(key=lambda key: (key not in ("architectures", "model_type"), key))
    listed = "; ".join(
        f"{key} is {shown(offered.get(key))} where the running model has"
        f" {shown(reference.get(key))}"
        for key in different[:_EXAMPLES]
    )
    more = f" (and {len(different) - _EXAMPLES} more)" if len(different) > _EXAMPLES else ""
    raise Refusal(Reason.CHECKPOINT_MISMATCH, f"config.json differs: {listed}{more}")


def config_differences(reference: Mapping[str, Any], offered: Mapping[str, Any]) -> list[str]:
    """Return the keys whose values differ, nested ones with dots. `null` equals absent."""
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


def shown(value: Any) -> str:
    """Return a value as messages show it: JSON of at most 100 characters."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 100 else text[:99] + "…"
