"""Opening checkpoints and adapters: all that can be known of them without reading their tensors."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from fleet_worker.adapters.checkpoint import Checkpoint
from fleet_worker.adapters.files import FileState, OpenDirectory, OpenFile, Roots
from fleet_worker.core.adapter_layout import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    check_weights_there,
)
from fleet_worker.core.layout import (
    CONFIG_FILE,
    CONFIG_LIMIT,
    INDEX_FILE,
    INDEX_LIMIT,
    all_tensors,
    check_index,
    parse_index,
    weight_files,
)
from fleet_worker.core.refusals import Refusal
from fleet_worker.core.safetensors_header import (
    LENGTH_BYTES,
    TensorSpec,
    header_length,
    parse_header,
)
from fleet_worker.protocol import Reason

_COMPANIONS = ((CONFIG_FILE, CONFIG_LIMIT), (INDEX_FILE, INDEX_LIMIT))


def open_checkpoint(path: str, roots: Roots | None) -> Checkpoint:
    """Open a checkpoint and check all that can be known without reading its tensors.

    Args:
        path: Absolute path of a directory.
        roots: Where it must be; None for the model's own directory.

    Errors:
        Refusal: any of the source and checkpoint reasons.
    """
    files: list[OpenFile] = []
    directory = OpenDirectory(path, roots)
    try:
        config = _config(CONFIG_FILE, directory.read(CONFIG_FILE, limit=CONFIG_LIMIT))
        index = directory.read(INDEX_FILE, limit=INDEX_LIMIT)
        specs = {}
        for name in weight_files(directory.names, index):
            file = directory.open(name)
            files.append(file)
            specs[name] = _specs(file)
        all_tensors(specs)
        if index is not None:
            check_index(parse_index(index), specs)
        return Checkpoint(directory.path, config, tuple(files), specs, _companions(directory))
    except BaseException:
        for file in files:
            os.close(file.descriptor)
        raise
    finally:
        directory.close()


def open_adapter(path: str, roots: Roots | None) -> Checkpoint:
    """Open a LoRA adapter; its configuration stands where a model's would.

    Args:
        path: Absolute path of a directory.
        roots: Where it must be.

    Errors:
        Refusal: any of the source and checkpoint reasons.
    """
    directory = OpenDirectory(path, roots)
    try:
        config = _config(
            ADAPTER_CONFIG_FILE, directory.read(ADAPTER_CONFIG_FILE, limit=CONFIG_LIMIT)
        )
        check_weights_there(directory.names)
        file = directory.open(ADAPTER_WEIGHTS_FILE)
        try:
            specs = {file.name: _specs(file)}
            companions = _companions(directory, ((ADAPTER_CONFIG_FILE, CONFIG_LIMIT),))
            return Checkpoint(directory.path, config, (file,), specs, companions)
        except BaseException:
            os.close(file.descriptor)
            raise
    finally:
        directory.close()


def _specs(file: OpenFile) -> tuple[TensorSpec, ...]:
    size = file.state.size
    prefix = file.read(0, min(LENGTH_BYTES, size))
    length = header_length(prefix, file=file.name, size=size)
    return parse_header(file.read(LENGTH_BYTES, length), file=file.name, size=size)


def _config(name: str, content: bytes | None) -> dict[str, Any]:
    if content is None:
        raise Refusal(
            Reason.SOURCE_NOT_FOUND,
            f"the directory holds no {name}, so nothing says what its weights compute",
        )
    try:
        config = json.loads(content)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise Refusal(Reason.CHECKPOINT_MALFORMED, f"{name} is not a JSON object")
    return config


def _companions(
    directory: OpenDirectory, small: Iterable[tuple[str, int]] = _COMPANIONS
) -> dict[str, tuple[FileState, str]]:
    companions = {}
    for name, limit in small:
        content = directory.read(name, limit=limit)
        state = directory.state_of(name)
        if content is not None and state is not None:
            companions[name] = (state, hashlib.sha256(content).hexdigest())
    return companions
