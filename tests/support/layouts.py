"""Directories with the weights of a model under the names that trainers and libraries give them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.support import damage
from tests.support.tiny import CONFIG

from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import INDEX_FILE, SINGLE_FILE

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
THIRDS = tuple(f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3))
TENSORS = ("a", "b", "c")


def write_layout(
    directory: Path,
    files: Sequence[str],
    *,
    index: Mapping[str, str] | bytes | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """A directory in which the first files have a tensor each, by the names a, b and c."""
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(CONFIG | dict(config or {})))
    for number, name in enumerate(files):
        if name.endswith(".safetensors"):
            tensor = TENSORS[number % len(TENSORS)]
            damage.write_tensors(directory / name, {tensor: ("U8", [1], b"1")})
        else:
            (directory / name).write_text("something else")
    if isinstance(index, bytes):
        (directory / INDEX_FILE).write_bytes(index)
    elif index is not None:
        (directory / INDEX_FILE).write_text(json.dumps({"weight_map": index}))
    return directory


def indexed(*files: str) -> dict[str, str]:
    return dict(zip(TENSORS, files, strict=False))


ONE = (SINGLE_FILE,)
X, Y, Z = (f"{name}.safetensors" for name in "xyz")
ADAPTER = "adapter_model.safetensors"
OF_ONE, OF_SHARDS = {"index": indexed(SINGLE_FILE)}, {"index": indexed(*SHARDS)}

READ: dict[str, tuple[Sequence[str], dict[str, Any], Sequence[str]]] = {
    "one file": (ONE, {}, ONE),
    "the files of an index": (SHARDS, OF_SHARDS, [*SHARDS, INDEX_FILE]),
    "an index of one file": (ONE, OF_ONE, [SINGLE_FILE, INDEX_FILE]),
    "an index whose files are gone": (ONE, OF_SHARDS, ONE),
    "an index whose files have other successors": (SHARDS, {"index": indexed(*THIRDS)}, SHARDS),
    "shards without an index": (SHARDS, {}, SHARDS),
    "other names": ([Y, X], {}, [X, Y]),
    "other names next to one file": (
        [SINGLE_FILE, "model_ema.safetensors", "model.fp16.safetensors", ADAPTER],
        {},
        ONE,
    ),
    "other names next to shards": ([*SHARDS, "consolidated.safetensors", X], {}, SHARDS),
    "other names next to an index": (
        [*SHARDS, "consolidated.safetensors", "consolidated.safetensors.index.json"],
        OF_SHARDS,
        [*SHARDS, INDEX_FILE],
    ),
    "an adapter next to other names": ([X, ADAPTER], {}, [X]),
    "pickles next to one file": (
        [SINGLE_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json"],
        {},
        ONE,
    ),
    "an index of a variant": ([X, "model.safetensors.index.fp16.json"], {}, [X]),
    "a configuration that names the same": (
        ONE,
        {"config": {"transformers_weights": SINGLE_FILE}},
        ONE,
    ),
}
"""Layout → its files, index and configuration, and those that are read as weights."""


def _refused(
    reason: Reason, files: Sequence[str], *named: str, **more: Any
) -> tuple[Sequence[str], dict[str, Any], Reason, Sequence[str]]:
    return files, more, reason, named


_AMBIGUOUS = partial(_refused, Reason.CHECKPOINT_AMBIGUOUS)
_ABSENT = partial(_refused, Reason.SOURCE_NOT_FOUND)
_MALFORMED = partial(_refused, Reason.CHECKPOINT_MALFORMED)
FIRST, SECOND = SHARDS
REFUSED = {
    "an index and its files next to one file": _AMBIGUOUS(
        [*SHARDS, SINGLE_FILE], SINGLE_FILE, INDEX_FILE, **OF_SHARDS
    ),
    "some files of an index next to one file": _AMBIGUOUS(
        [FIRST, SINGLE_FILE], SINGLE_FILE, INDEX_FILE, SECOND, **OF_SHARDS
    ),
    "shards without an index next to one file": _AMBIGUOUS(
        [*SHARDS, SINGLE_FILE], SINGLE_FILE, FIRST
    ),
    "a first shard next to one file": _AMBIGUOUS([FIRST, SINGLE_FILE], SINGLE_FILE, *SHARDS),
    "shards of two saves": _AMBIGUOUS([*SHARDS, *THIRDS], FIRST, THIRDS[0]),
    "shards next to those of an index": _AMBIGUOUS(
        [*SHARDS, *THIRDS], INDEX_FILE, THIRDS[0], **OF_SHARDS
    ),
    "an index of one file and more": _AMBIGUOUS([SINGLE_FILE, FIRST], INDEX_FILE, FIRST, **OF_ONE),
    "a tensor in two files without an index": _AMBIGUOUS(
        [X, Y, Z, "left-over.safetensors"], "'a'", X, "left-over.safetensors"
    ),
    "a configuration that names another file": _AMBIGUOUS(
        [SINGLE_FILE, X], SINGLE_FILE, X, config={"transformers_weights": X}
    ),
    "a lacking file of an index": _ABSENT([FIRST], SECOND, **OF_SHARDS),
    "an index without its files": _ABSENT([], FIRST, **OF_SHARDS),
    "a lacking shard": _ABSENT([SECOND], FIRST),
    "an index that cannot be read next to one file": _MALFORMED(ONE, INDEX_FILE, index=b""),
    "a tensor in two files of an index": _MALFORMED(
        [*SHARDS, X, Y], "'a'", index={"a": Y, "b": SECOND, "d": FIRST}
    ),
    "no weights": _ABSENT([]),
    "only an adapter": _ABSENT([ADAPTER]),
    "only a pickle": _MALFORMED(["pytorch_model.bin"], "pickled"),
    "only another pickle": _MALFORMED(["consolidated.00.pth"], "pickled"),
}
"""Layout → its files, index and configuration, the reason of the refusal, and words of its message."""
