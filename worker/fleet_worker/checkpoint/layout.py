"""The weight files of a checkpoint's directory."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from fleet_worker.checkpoint.safetensors_header import TensorSpec
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

CONFIG_LIMIT = 4 * 1024 * 1024
INDEX_LIMIT = 128 * 1024 * 1024
"""Bytes. The index of a model with 100,000 tensors has about 10 MB."""

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def weight_files(names: Collection[str], index: bytes | None) -> tuple[str, ...]:
    """Return the sorted names of the files that hold the weights.

    The rule is that of the Hugging Face libraries: the files that the index names. Without an index
    it is `model.safetensors`, and without that file all `.safetensors` files.

    Args:
        names: All names in the directory.
        index: Content of `INDEX_FILE`, if it exists.

    Errors:
        Refusal: `SourceNotFound` if a file is missing. `CheckpointMalformed` for pickled weights
            (never opened) and for an invalid index.
    """
    if index is not None:
        files = sorted(set(parse_index(index).values()))
        missing = [file for file in files if file not in names]
        if missing:
            raise Refusal(
                Reason.SOURCE_NOT_FOUND,
                f"{INDEX_FILE} names files that do not exist ({len(missing)}), such as {missing[0]}",
            )
        return tuple(files)
    if SINGLE_FILE in names:
        return (SINGLE_FILE,)
    if found := sorted(name for name in names if name.endswith(".safetensors")):
        return tuple(found)
    if any(name.endswith(_PICKLED) for name in names):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            "the weights are pickled; save them as safetensors: the worker opens no pickles,"
            " because reading one runs its code",
        )
    raise Refusal(Reason.SOURCE_NOT_FOUND, "the directory has no weight files (.safetensors)")


def parse_index(index: bytes) -> dict[str, str]:
    """Return tensor name → file name.

    Errors:
        Refusal: `CheckpointMalformed`.
    """
    try:
        weight_map = json.loads(index)["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        entries = {}
    if not entries:
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} has no valid `weight_map`")
    if any("/" in file or not file.endswith(".safetensors") for file in entries.values()):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} may name only .safetensors files of its own directory",
        )
    return entries


def all_tensors(files: Mapping[str, Iterable[TensorSpec]]) -> dict[str, TensorSpec]:
    """Return tensor name → specification, over all files.

    Errors:
        Refusal: `CheckpointMalformed` if two files hold a tensor of the same name, because the load
            may use either.
    """
    tensors: dict[str, TensorSpec] = {}
    for file, specs in files.items():
        for spec in specs:
            if spec.name in tensors:
                raise Refusal(
                    Reason.CHECKPOINT_MALFORMED,
                    f"{file} has a tensor {spec.name!r} that another file has too",
                )
            tensors[spec.name] = spec
    return tensors


def check_index(index: Mapping[str, str], files: Mapping[str, Iterable[TensorSpec]]) -> None:
    """Refuse an index that does not match the files.

    Errors:
        Refusal: `CheckpointMalformed`, because loaders that follow the index would skip tensors.
    """
    held = {(spec.name, file) for file, specs in files.items() for spec in specs}
    if held != set(index.items()):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} does not match the tensors in its files",
        )
