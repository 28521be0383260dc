"""The directory that vLLM starts on: that of the weights, or one of links to the digested files.

vLLM opens weights by name, and chooses the files by rules of its own. Some repositories have their weights
twice, in `model.safetensors` and `consolidated.safetensors`, and cannot be changed in a shared cache.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.errors import Refusal
from fleet_worker.protocol import Reason


def start_directory(checkpoint: Checkpoint) -> str:
    """Return a directory in which vLLM reads exactly the files of the checkpoint.

    It is the checkpoint's own, if vLLM reads these files there. Otherwise it has links to everything in
    that directory but other weights.

    Errors:
        Refusal: The directory cannot be read.
        OSError: No directory can be made.
    """
    try:
        checkpoint.check_start()
    except Refusal as refusal:
        if refusal.reason is not Reason.CHECKPOINT_MALFORMED:
            raise
    else:
        return checkpoint.path
    made = Path(tempfile.mkdtemp(prefix="rlfleet-start-"))
    digested = {file.name for file in checkpoint.files}
    for entry in Path(checkpoint.path).iterdir():
        if entry.name in digested:
            (made / entry.name.lstrip(".")).symlink_to(entry)  # vLLM reads no hidden weights
        elif not entry.name.endswith(".safetensors"):
            (made / entry.name).symlink_to(entry)
    return str(made)
