"""A directory of links to the weights of an open checkpoint, for libraries that read directories.

Each library chooses files by rules of its own, and opens them by name. Here it finds one set of weights,
under the names that `save_pretrained` gives. The links lead to the open files, so directories and links
may move meanwhile.
"""

from __future__ import annotations

import json
from pathlib import Path

from fleet_worker.checkpoint.checkpoint import Checkpoint
from rlfleet_resources.weight_files import INDEX_FILE, SINGLE_FILE


def link_weights(checkpoint: Checkpoint, folder: Path) -> None:
    """Make links to the weights of a checkpoint, which stay valid while it is open.

    `folder`: an existing directory without weights. Errors: OSError.
    """
    total = len(checkpoint.files)
    weight_map: dict[str, str] = {}
    for number, file in enumerate(checkpoint.files, start=1):
        name = f"model-{number:05}-of-{total:05}.safetensors" if total > 1 else SINGLE_FILE
        (folder / name).symlink_to(checkpoint.link_of(file))
        weight_map |= {spec.name: name for spec in checkpoint.specs[file.name]}
    if total > 1:
        size = sum(spec.end - spec.begin for spec in checkpoint.tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        (folder / INDEX_FILE).write_text(json.dumps(index))
