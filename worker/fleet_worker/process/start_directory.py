"""The directory that vLLM starts on: links to the weights of the start, and to all else of the model.

vLLM takes from one directory the weights and all else that it needs: configuration, tokenizer, the processor
of images, chat templates, code. A version has only its weights, and the rest is the model's.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.files import OpenDirectory
from fleet_worker.checkpoint.format import CONFIG_FILE
from fleet_worker.checkpoint.links import link_weights
from fleet_worker.checkpoint.weight_sets import INDEX_FILE
from fleet_worker.engine.start_names import DIGESTS_FILE, START_PREFIX
from fleet_worker.errors import Refusal


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
    (made / DIGESTS_FILE).write_text(json.dumps(weights.tensor_digests()))
    # The configuration that versions are compared to.
    (made / CONFIG_FILE).write_text(json.dumps(model.config))
    directory = OpenDirectory(model.path, None)
    try:
        for name in directory.names - {CONFIG_FILE, INDEX_FILE}:
            if not name.endswith(".safetensors"):
                (made / name).symlink_to(_link_to(directory, name))
    finally:
        directory.close()
    return str(made)


def _link_to(directory: OpenDirectory, name: str) -> str:
    """Return a path that leads to a file, which stays open as long as this process."""
    try:
        return f"/proc/{os.getpid()}/fd/{directory.open(name).descriptor}"
    except Refusal:  # a directory, or a file that the worker may not read
        return str(Path(directory.path, name))
