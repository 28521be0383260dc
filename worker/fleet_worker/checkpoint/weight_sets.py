"""Which files of a directory are its weights: one reading, for all that read it.

A *set* is all weights of one model. A directory has one for each of these names: `model.safetensors`, the
files that `model.safetensors.index.json` names, and shards that no index names
(`model-00001-of-00002.safetensors`), by their number. The Hugging Face libraries save under these names, and
each of them prefers another one. So a directory with two sets means nothing certain. Without any of these
names, all `.safetensors` files are one set.

Source: `PreTrainedModel.save_pretrained` and `_get_resolved_checkpoint_files`, transformers 5;
`DefaultModelLoader._prepare_weights` of vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fleet_worker.checkpoint.format import TensorSpec, parse_json
from fleet_worker.errors import Refusal, counted
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import CONFIG_FILE, INDEX_FILE, SINGLE_FILE

ADAPTER_WEIGHTS_FILE = "adapter_model.safetensors"
INDEX_LIMIT = 128 * 1024 * 1024
"""Bytes. The index of a model with 100,000 tensors has about 10 MB."""
NAMING_KEY = "transformers_weights"
"""Key of config.json by which transformers reads other weights."""

_SHARD = re.compile(r"model-(\d{5})-of-(\d{5})\.safetensors")
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True, slots=True)
class WeightSet:
    """One set of weights.

    Fields:
        name: what names it: a file, or a pattern.
        files: the names of its files that exist, sorted.
        missing: the names of the others, at most one; empty if all exist.
    """

    name: str
    files: tuple[str, ...]
    missing: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = self.name
        if text != self.files[0]:
            text += f" ({counted(len(self.files), 'file')}, such as {self.files[0]})"
        return text + (f", of which {self.missing[0]} is missing" if self.missing else "")


def weight_sets(names: Collection[str], indexed: Collection[str] | None) -> list[WeightSet]:
    """Return the sets of weights in a directory, of which at least one file exists.

    `indexed`: the files that `INDEX_FILE` names; None without it.
    """
    weights = weights_among(names)
    named = weights.intersection(indexed or ())
    sets = []
    if named:
        sets.append(_set(INDEX_FILE, named, sorted(indexed or ())))
    if SINGLE_FILE in weights - named:
        sets.append(WeightSet(SINGLE_FILE, (SINGLE_FILE,)))
    shards: dict[str, set[str]] = {}
    for file in weights - named:
        if shard := _SHARD.fullmatch(file):
            shards.setdefault(shard[2], set()).add(file)
    for total, files in sorted(shards.items()):
        every = (f"model-{number:05}-of-{total}.safetensors" for number in range(1, int(total) + 1))
        sets.append(_set(f"model-*-of-{total}.safetensors", files, every))
    others = weights - {ADAPTER_WEIGHTS_FILE}
    if not sets and others:
        sets.append(_set("*.safetensors", others, ()))
    return sets


def _set(name: str, files: Collection[str], every: Iterable[str]) -> WeightSet:
    missing = next((file for file in every if file not in files), None)
    return WeightSet(name, tuple(sorted(files)), () if missing is None else (missing,))


def chosen_set(
    names: Collection[str], index: bytes | None, config: Mapping[str, object]
) -> WeightSet:
    """Return the one set of weights in a directory, all of whose files exist.

    Args:
        names: All names in the directory.
        index: Content of `INDEX_FILE`; None without it.
        config: Content of config.json.

    Errors:
        Refusal: `CheckpointAmbiguous` if there are two. `SourceNotFound` without a set, or if a file is
            missing. `CheckpointMalformed` for pickled weights (never opened) and for an invalid index.
    """
    indexed = set(parse_index(index).values()) if index is not None else None
    sets = weight_sets(names, indexed)
    if len(sets) > 1:
        raise _ambiguous(f"{sets[0]}; and {sets[1]}")
    if not sets:
        raise _no_weights(names, indexed)
    (only,) = sets
    if only.missing:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{only.missing[0]} does not exist, a file of {only.name}",
        )
    named = config.get(NAMING_KEY)
    if named is not None and named != only.name and (named,) != only.files:
        raise _ambiguous(f"{only}; and {str(named)[:200]}, by {NAMING_KEY} in {CONFIG_FILE}")
    return only


def _ambiguous(sets: str) -> Refusal:
    return Refusal(
        Reason.CHECKPOINT_AMBIGUOUS,
        f"the directory has two sets of weights: {sets}. Delete the one that is not meant, and save each"
        " version into a directory of its own",
    )


def _no_weights(names: Collection[str], indexed: Collection[str] | None) -> Refusal:
    if indexed:
        return Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"{INDEX_FILE} names files that do not exist ({len(indexed)}), such as {min(indexed)}",
        )
    if any(name.endswith(_PICKLED) for name in names):
        return Refusal(
            Reason.CHECKPOINT_MALFORMED,
            "the weights are pickled; save them as safetensors: the worker opens no pickles,"
            " because reading one runs its code",
        )
    return Refusal(Reason.SOURCE_NOT_FOUND, "the directory has no weight files (.safetensors)")


def has_other_weights(
    names: Collection[str], indexed: Collection[str] | None, opened: Collection[str]
) -> bool:
    """Whether a directory has a set of weights of which files were not opened.

    Files that are only missing make no difference: a deletion may be under way.

    Args:
        names: All names in the directory now.
        indexed: The files that `INDEX_FILE` names now; None without it.
        opened: The files of a checkpoint that was opened there, with its index.
    """
    sets = weight_sets(names, indexed)
    return any({*each.files}.difference(opened) for each in sets) or (
        INDEX_FILE not in opened and any(each.name == INDEX_FILE for each in sets)
    )


def holds_model(names: Collection[str]) -> bool:
    """Whether a directory holds the weights of a whole model, as far as its names show."""
    return CONFIG_FILE in names and bool(weights_among(names) - {ADAPTER_WEIGHTS_FILE})


def weights_among(names: Iterable[str]) -> frozenset[str]:
    """Return the names of safetensors files that are not hidden."""
    return frozenset(n for n in names if n.endswith(".safetensors") and not n.startswith("."))


def parse_index(index: bytes, *, may_be_empty: bool = False) -> dict[str, str]:
    """Return tensor name → file name. Errors: Refusal `CheckpointMalformed`.

    `may_be_empty`: the index may name no tensor, as that of a delta that changes none.
    """
    entries: dict[str, str] | None
    try:
        weight_map = parse_json(index, file=INDEX_FILE)["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        entries = None
    if entries is None or not (entries or may_be_empty):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} has no valid `weight_map`")
    files = set(entries.values())
    if "/" in "".join(files) or weights_among(files) != files:
        allowed = ".safetensors files of its own directory that are not hidden"
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} may name only {allowed}")
    return entries


def check_tensors_once(index: bytes | None, files: Mapping[str, Iterable[TensorSpec]]) -> None:
    """Refuse files in which a tensor has no certain place.

    Args:
        index: Content of their index; None without it.
        files: File name → its tensors.

    Errors:
        Refusal: `CheckpointMalformed` if the index does not match the files, because loaders that follow it
            would skip tensors. `CheckpointAmbiguous` if two files hold a tensor of the same name, and no index
            says which one counts.
    """
    places: dict[str, str] = {}
    for file, specs in files.items():
        for spec in specs:
            before = places.setdefault(spec.name, file)
            if before == file:
                continue
            twice = f"{file} has a tensor {spec.name!r} that another file has too, {before}"
            if index is None:
                raise _ambiguous(twice)
            raise Refusal(Reason.CHECKPOINT_MALFORMED, twice)
    if index is not None and places != parse_index(index):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} does not match the tensors in its files",
        )
