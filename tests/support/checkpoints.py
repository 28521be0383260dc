"""Tiny real checkpoints for tests, written once a session by the worker's environment."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.environments import REPOSITORY, engine_environment, worker_python

_WRITE = """
import json, sys
sys.path.insert(0, sys.argv[1])
from checkpoints import Shape, write_checkpoint
for target, options in json.loads(sys.argv[2]).items():
    shape = Shape(**options.pop("shape", {}))
    write_checkpoint(target, shape=shape, **options)
"""


def write_checkpoints(wanted: Mapping[Path, Mapping[str, Any]]) -> None:
    """Write checkpoints: directory → arguments of `tools/checkpoints.py`'s `write_checkpoint`."""
    todo = json.dumps({str(target): dict(options) for target, options in wanted.items()})
    command = [worker_python(), "-c", _WRITE, str(REPOSITORY / "tools"), todo]
    subprocess.run(command, check=True, timeout=120, env=engine_environment())


def copy_of(checkpoint: Path, target: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(checkpoint, target)
    return target
