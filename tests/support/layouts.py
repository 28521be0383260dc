"""Directories with the weights of a model under the names that trainers and libraries give them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support import damage
from tests.support.tiny import CONFIG

from fleet_worker.checkpoint.weight_sets import INDEX_FILE, SINGLE_FILE
from fleet_worker.protocol import Reason

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


READ: dict[str, tuple[Sequence[str], dict[str, Any], Sequence[str]]] = {
    "one file": ([SINGLE_FILE], {}, [SINGLE_FILE]),
    "the files of an index": (SHARDS, {"index": indexed(*SHARDS)}, [*SHARDS, INDEX_FILE]),
    "an index of one file": (
        [SINGLE_FILE],
        {"index": indexed(SINGLE_FILE)},
        [SINGLE_FILE, INDEX_FILE],
    ),
    "an index whose files are gone": (
        [SINGLE_FILE],
        {"index": indexed(*SHARDS)},
        [SINGLE_FILE],
    ),
    "an index whose files have other successors": (
        SHARDS,
        {"index": indexed(*THIRDS)},
        SHARDS,
    ),
    "shards without an index": (SHARDS, {}, SHARDS),
    "other names": (["y.safetensors", "x.safetensors"], {}, ["x.safetensors", "y.safetensors"]),
    "other names next to one file": (
        [
            SINGLE_FILE,
            "model_ema.safetensors",
            "model.fp16.safetensors",
            "adapter_model.safetensors",
        ],
        {},
        [SINGLE_FILE],
    ),
    "other names next to shards": (
        [*SHARDS, "consolidated.safetensors", "left-over.safetensors"],
        {},
        SHARDS,
    ),
    "other names next to an index": (
        [*SHARDS, "consolidated.safetensors", "consolidated.safetensors.index.json"],
        {"index": indexed(*SHARDS)},
        [*SHARDS, INDEX_FILE],
    ),
    "an adapter next to other names": (
        ["x.safetensors", "adapter_model.safetensors"],
        {},
        ["x.safetensors"],
    ),
    "pickles next to one file": (
        [SINGLE_FILE, "pytorch_model.bin", "pytorch_model.bin.index.json"],
        {},
        [SINGLE_FILE],
    ),
    "an index of a variant": (
        ["x.safetensors", "model.safetensors.index.fp16.json"],
        {},
        ["x.safetensors"],
    ),
    "a configuration that names the same": (
        [SINGLE_FILE],
        {"config": {"transformers_weights": SINGLE_FILE}},
        [SINGLE_FILE],
    ),
}
"""Layout → its files, index and configuration, and those that are read as weights."""

REFUSED: dict[str, tuple[Sequence[str], dict[str, Any], Reason, Sequence[str]]] = {
    "an index and its files next to one file": (
        [*SHARDS, SINGLE_FILE],
        {"index": indexed(*SHARDS)},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SINGLE_FILE, INDEX_FILE],
    ),
    "some files of an index next to one file": (
        [SHARDS[0], SINGLE_FILE],
        {"index": indexed(*SHARDS)},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SINGLE_FILE, INDEX_FILE, SHARDS[1]],
    ),
    "shards without an index next to one file": (
        [*SHARDS, SINGLE_FILE],
        {},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SINGLE_FILE, SHARDS[0]],
    ),
    "a first shard next to one file": (
        [SHARDS[0], SINGLE_FILE],
        {},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SINGLE_FILE, SHARDS[0], SHARDS[1]],
    ),
    "shards of two saves": (
        [*SHARDS, *THIRDS],
        {},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SHARDS[0], THIRDS[0]],
    ),
    "shards next to those of an index": (
        [*SHARDS, *THIRDS],
        {"index": indexed(*SHARDS)},
        Reason.CHECKPOINT_AMBIGUOUS,
        [INDEX_FILE, THIRDS[0]],
    ),
    "an index of one file and more": (
        [SINGLE_FILE, SHARDS[0]],
        {"index": indexed(SINGLE_FILE)},
        Reason.CHECKPOINT_AMBIGUOUS,
        [INDEX_FILE, SHARDS[0]],
    ),
    "a tensor in two files without an index": (
        ["x.safetensors", "y.safetensors", "z.safetensors", "left-over.safetensors"],
        {},
        Reason.CHECKPOINT_AMBIGUOUS,
        ["'a'", "x.safetensors", "left-over.safetensors"],
    ),
    "a configuration that names another file": (
        [SINGLE_FILE, "x.safetensors"],
        {"config": {"transformers_weights": "x.safetensors"}},
        Reason.CHECKPOINT_AMBIGUOUS,
        [SINGLE_FILE, "x.safetensors"],
    ),
    "a lacking file of an index": (
        [SHARDS[0]],
        {"index": indexed(*SHARDS)},
        Reason.SOURCE_NOT_FOUND,
        [SHARDS[1]],
    ),
    "an index without its files": (
        [],
        {"index": indexed(*SHARDS)},
        Reason.SOURCE_NOT_FOUND,
        [SHARDS[0]],
    ),
    "a lacking shard": ([SHARDS[1]], {}, Reason.SOURCE_NOT_FOUND, [SHARDS[0]]),
    "an index that cannot be read next to one file": (
        [SINGLE_FILE],
        {"index": b""},
        Reason.CHECKPOINT_MALFORMED,
        [INDEX_FILE],
    ),
    "a tensor in two files of an index": (
        [*SHARDS, "x.safetensors", "y.safetensors"],
        {"index": {"a": "y.safetensors", "b": SHARDS[1], "d": SHARDS[0]}},
        Reason.CHECKPOINT_MALFORMED,
        ["'a'"],
    ),
    "no weights": ([], {}, Reason.SOURCE_NOT_FOUND, []),
    "only an adapter": (["adapter_model.safetensors"], {}, Reason.SOURCE_NOT_FOUND, []),
    "only a pickle": (["pytorch_model.bin"], {}, Reason.CHECKPOINT_MALFORMED, ["pickled"]),
    "only another pickle": (["consolidated.00.pth"], {}, Reason.CHECKPOINT_MALFORMED, ["pickled"]),
}
"""Layout → its files, index and configuration, the reason of the refusal, and words of its message."""
