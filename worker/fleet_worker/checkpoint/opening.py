"""Open a checkpoint, and check it without reading its tensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.checkpoint.layout import (
    CONFIG_FILE,
    CONFIG_LIMIT,
    INDEX_FILE,
    INDEX_LIMIT,
    all_tensors,
    check_index,
    parse_index,
    weight_files,
)
from fleet_worker.checkpoint.safetensors_header import (
    LENGTH_BYTES,
    TensorSpec,
    header_length,
    parse_header,
)
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason

_COMPANIONS = ((CONFIG_FILE, CONFIG_LIMIT), (INDEX_FILE, INDEX_LIMIT))


def open_checkpoint(path: str, roots: Roots | None) -> Checkpoint:
    """Open a checkpoint and check it without reading its tensors.

    Args:
        path: Absolute path of a directory.
        roots: The allowed roots. None for the model's own directory.

    Errors:
        Refusal: any of the source and checkpoint reasons.
    """
    files: list[OpenFile] = []
    directory = OpenDirectory(path, roots)
    try:
        config = config_of(CONFIG_FILE, directory.read(CONFIG_FILE, limit=CONFIG_LIMIT))
        index = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
        specs = {}
        for name in weight_files(directory.names, index):
            file = directory.open(name)
            files.append(file)
            specs[name] = specs_of(file)
        all_tensors(specs)
        if index is not None:
            check_index(parse_index(index), specs)
        return Checkpoint(directory.path, config, tuple(files), specs, companions_of(directory))
    except BaseException:
        for file in files:
            os.close(file.descriptor)
        raise
    finally:
        directory.close()


def specs_of(file: OpenFile) -> tuple[TensorSpec, ...]:
    """Return the tensors in the header of a file of weights."""
    size = file.state.size
    prefix = file.read(0, min(LENGTH_BYTES, size))
    length = header_length(prefix, file=file.name, size=size)
    return parse_header(file.read(LENGTH_BYTES, length), file=file.name, size=size)


def config_of(name: str, content: bytes | None) -> dict[str, Any]:
    """Return a configuration, which must be a JSON object."""
    if content is None:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"the directory has no {name}, which describes its weights",
        )
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is not a JSON object")
    return config


def companions_of(
    directory: OpenDirectory, small: Iterable[tuple[str, int]] = _COMPANIONS
) -> dict[str, tuple[FileState, str]]:
    """Return the states and digests of the small files next to the weights."""
    companions = {}
    for name, limit in small:
        content = directory.read(name, limit=limit)
        state = directory.state_of(name)
        if content is not None and state is not None:
            companions[name] = (state, hashlib.sha256(content).hexdigest())
    return companions
