"""The directory that vLLM starts on: that of the model, or one of links.

vLLM chooses the files of the weights by rules of its own, and takes from the same directory all else that it
needs: the processor of images, chat templates, code. A version has only its weights, and the rest is
the model's.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.format import INDEX_FILE
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def start_directory(checkpoint: Checkpoint, model: str) -> str:
    """Return a directory in which vLLM reads the weights of a checkpoint, and all else of the model.

    It is the model's own, if vLLM reads these weights there. Otherwise it has links to the weights, and
    to everything in the model's directory but weights.

    Args:
        checkpoint: The weights to start on.
        model: Directory of the model.

    Errors:
        Refusal: A directory cannot be read.
        OSError: No directory can be made.
    """
    if checkpoint.path == model and _is_read_there(checkpoint):
        return model
    made = Path(tempfile.mkdtemp(prefix="rlfleet-start-"))
    weights = {file.name for file in checkpoint.files} | ({INDEX_FILE} & set(checkpoint.companions))
    for name in weights:
        (made / name).symlink_to(Path(checkpoint.path, name))
    for entry in Path(model).iterdir():
        if entry.name != INDEX_FILE and not entry.name.endswith(".safetensors"):
            (made / entry.name).symlink_to(entry)
    return str(made)


def _is_read_there(checkpoint: Checkpoint) -> bool:
    try:
        checkpoint.check_start()
    except Refusal as refusal:
        if refusal.reason is not Reason.CHECKPOINT_MALFORMED:
            raise
        return False
    return True
