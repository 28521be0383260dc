"""A hook of slime and miles that publishes each version that they write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch.distributed as dist

from rlfleet import Weights, make_readable, run_of


def publish(args: Any, version_dir: str, rollout_engines: Any) -> None:  # noqa: ARG001 - as slime calls it
    """Every process calls it after a version is written, before slime's own engines load it.

    Process 0 also calls it once with the empty folder of all versions.
    """
    folder = Path(version_dir).resolve()
    version = folder.name.removeprefix("weight_v")
    if dist.get_rank() or version == folder.name:
        return
    make_readable(folder)  # for workers, which run as another user
    with Weights("policy", namespace="rl") as weights:
        weights.publish(version, path=folder, run_id=run_of(folder.parent), wait=False)
