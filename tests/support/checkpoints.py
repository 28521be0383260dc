"""Tiny real checkpoints for tests, written by the worker's environment."""

from __future__ import annotations

import shutil
from pathlib import Path

from stack.offline import write_checkpoints

__all__ = ["copy_of", "write_checkpoints"]


def copy_of(checkpoint: Path, target: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(checkpoint, target)
    return target
