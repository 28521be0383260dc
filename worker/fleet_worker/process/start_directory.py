"""The directory that vLLM starts on: links to the weights of the start, and to all else of the model.

Of a model in a store it has the small files themselves, and links to the weights in memory.

vLLM takes from one directory the weights and all else that it needs: configuration, tokenizer, the processor
of images, chat templates, code. A version has only its weights, and the rest is the model's.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import Directory, is_uri
from fleet_worker.checkpoint.links import link_weights
from fleet_worker.checkpoint.places import open_directory
from fleet_worker.engine.start_names import DIGESTS_FILE, START_PREFIX
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason
from rlfleet_resources.weight_files import CONFIG_FILE, INDEX_FILE, WEIGHTS_SUFFIX

_LOG = logging.getLogger(__name__)
_OTHER_WEIGHTS = (".bin", ".ckpt", ".gguf", ".h5", ".msgpack", ".onnx", ".pt", ".pth")
"""Of other formats, which repositories often have next to those that the engine takes."""
_MOST_BYTES = 256 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+ -]{0,200}")


def start_directory(weights: Checkpoint, model: Checkpoint, *, port: int) -> str:
    """Make the directory. Its links lead to open files, so directories may be exchanged meanwhile.

    Its name is the same at each start. vLLM's cache of compiled graphs goes by it.

    Args:
        weights: The weights to start on, which have been digested.
        model: The model, whose configuration holds for all versions.
        port: A port that this process holds, so that no other one has the directory.

    Errors:
        Refusal: The model's directory cannot be read.
        OSError: No directory can be made.
    """
    made = Path(tempfile.gettempdir(), f"{START_PREFIX}{port}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(mode=0o700)
    link_weights(weights, made)
    # Sealed memory cannot change after it was digested.
    digests = None if weights.is_of_memory else weights.tensor_digests()
    (made / DIGESTS_FILE).write_text(json.dumps(digests))
    # The configuration that versions are compared to.
    (made / CONFIG_FILE).write_text(json.dumps(model.config))
    directory = open_directory(model.path, None)
    try:
        made_here = {CONFIG_FILE, INDEX_FILE, DIGESTS_FILE}
        others = [n for n in directory.names - made_here if not n.endswith(WEIGHTS_SUFFIX)]
        if is_uri(model.path):
            _save(directory, others, made)
        else:
            for name in others:
                (made / name).symlink_to(_link_to(directory, name))
    finally:
        directory.close()
    return str(made)


def _save(directory: Directory, names: Iterable[str], folder: Path) -> None:
    """Save objects of a store as files, since libraries open them by name.

    Errors:
        Refusal: `CheckpointMalformed` if they are too large; those of reads.
        OSError: There is no room for them.
    """
    shown = [n for n in names if not n.startswith(".") and not n.endswith(_OTHER_WEIGHTS)]
    named = [name for name in shown if _NAME.fullmatch(name)]
    if odd := sorted({*shown} - {*named}):
        _LOG.warning(
            "the engine starts without %d objects of %s: no files have their names, such as %s; rename them",
            len(odd),
            directory.path,
            ascii(odd[0][:100]),
        )
    files = [directory.open(name) for name in named]
    if sum(file.state.size for file in files) > _MOST_BYTES:
        largest = max(files, key=lambda file: file.state.size)
        raise Refusal(
            Reason.CHECKPOINT_MALFORMED,
            f"the files of the model besides its weights have more than {_MOST_BYTES} bytes; remove those that the"
            f" engine does not need from {directory.path}, such as {largest.name}",
        )
    for file in files:
        (folder / file.name).write_bytes(file.read(0, file.state.size))


def _link_to(directory: Directory, name: str) -> str:
    """Return a path that leads to a file, which stays open as long as this process."""
    try:
        return f"/proc/{os.getpid()}/fd/{directory.open(name).descriptor}"
    except Refusal:  # a directory, or a file that the worker may not read
        return str(Path(directory.path, name))
