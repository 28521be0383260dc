r"""Runs a training, and publishes the models that it saves.

    python3 publish.py 'global_step(\d+)_hf' sh train.sh

The first argument is a pattern for the names of the folders. Its group is the version.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

from rlfleet import Refused, Weights, make_readable, run_of

RUN = Path(os.environ.get("RUN_DIRECTORY", "/weights/run-1"))
"""A training that starts over needs another directory: it is another run."""


def is_complete(folder: Path) -> bool:
    """Whether the model is saved: the tokenizer's file is the last one that is written."""
    try:
        json.loads((folder / "tokenizer.json").read_text())
    except (OSError, ValueError):
        return False
    return True


def saved(pattern: str) -> dict[int, Path]:
    """The complete models by version, in order."""
    found = {}
    for folder in RUN.iterdir():
        name = re.fullmatch(pattern, folder.name)
        if name and is_complete(folder):
            found[int(name[1])] = folder
    return dict(sorted(found.items()))


def publish(weights: Weights, version: int, folder: Path) -> None:
    """Ask the fleet for a version, and wait until it serves."""
    make_readable(folder)  # for workers, which run as another user
    try:
        rollout = weights.publish(version, path=folder, run_id=run_of(RUN))
    except Refused as refused:
        print(f"step {version} is refused, {refused.reason}: {refused.message}", flush=True)
    else:
        print(f"step {version} serves after {rollout.timings.total_seconds} s", flush=True)


def main(pattern: str, *command: str) -> int:
    """Returns: the exit code of the training."""
    RUN.mkdir(parents=True, exist_ok=True)
    last = max(saved(pattern), default=-1)  # a training that resumes has published these
    with Weights("policy", namespace="rl") as weights, subprocess.Popen(command) as training:  # noqa: S603 - yours
        while True:
            ended = training.poll() is not None
            newer = {
                version: folder for version, folder in saved(pattern).items() if version > last
            }
            if newer:
                last = max(newer)  # a newer one replaces those before it
                publish(weights, last, newer[last])
            if ended:
                return training.returncode
            time.sleep(0.5)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
