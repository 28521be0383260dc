"""Which files of a checkpoint's directory hold its weights."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping

from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import TensorSpec
from fleet_worker.protocol import Reason

CONFIG_FILE = "config.json"
SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

CONFIG_LIMIT = 4 * 1024 * 1024
INDEX_LIMIT = 128 * 1024 * 1024
"""Bytes; the index of a model with 100,000 tensors has about 10 MB."""

_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


def weight_files(names: Collection[str], index: bytes | None) -> tuple[str, ...]:
    """Names of the files that hold the weights, sorted.

    The rule of the Hugging Face libraries: the files that the index names; without an index
    `model.safetensors`; without that every `.safetensors` file.

    Args:
        names: All names in the directory.
        index: Content of `INDEX_FILE`, if there is one.

    Errors:
        Refusal: `SourceNotFound` if a file is missing, `CheckpointMalformed` for pickled weights
            (which are never opened) or an index that is none.
    """
    if index is not None:
        files = sorted(set(parse_index(index).values()))
        missing = [file for file in files if file not in names]
        if missing:
            raise Refusal(
                Reason.SOURCE_NOT_FOUND,
                f"{INDEX_FILE} names {len(missing)} files that are not there, such as {missing[0]}",
            )
        return tuple(files)
    if SINGLE_FILE in names:
        return (SINGLE_FILE,)
    if found := sorted(name for name in names if name.endswith(".safetensors")):
        return tuple(found)
    if any(name.endswith(_PICKLED) for name in names):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            "the weights are pickled; only safetensors files are read, because reading a pickle"
            " runs what it holds",
        )
    raise Refusal(Reason.SOURCE_NOT_FOUND, "the directory holds no weight files (.safetensors)")


def parse_index(index: bytes) -> dict[str, str]:
    """Tensor name → file name.

    Errors:
        Refusal: `CheckpointMalformed`.
    """
    try:
        weight_map = json.loads(index)["weight_map"]
        entries = {str(name): str(file) for name, file in weight_map.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        entries = {}
    if not entries:
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{INDEX_FILE} has no weight map")
    if any("/" in file or not file.endswith(".safetensors") for file in entries.values()):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} names something other than safetensors files of its own directory",
        )
    return entries


def all_tensors(files: Mapping[str, Iterable[TensorSpec]]) -> dict[str, TensorSpec]:
    """Tensor name → specification over all files.

    Errors:
        Refusal: `CheckpointMalformed` if two files hold a tensor of one name: which of them would
            be loaded is chance.
    """
    tensors: dict[str, TensorSpec] = {}
    for file, specs in files.items():
        for spec in specs:
            if spec.name in tensors:
                raise Refusal(
                    Reason.CHECKPOINT_MALFORMED,
                    f"{file} repeats the tensor {spec.name!r} of another file",
                )
            tensors[spec.name] = spec
    return tensors


def check_index(index: Mapping[str, str], files: Mapping[str, Iterable[TensorSpec]]) -> None:
    """Make sure that the index tells the truth about the files.

    Errors:
        Refusal: `CheckpointMalformed`: loaders that follow the index would skip tensors.
    """
    held = {(spec.name, file) for file, specs in files.items() for spec in specs}
    if held != set(index.items()):
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"{INDEX_FILE} and the files it names disagree about which tensor is where",
        )
