"""Stages a version in full and as a delta, in turn, by a real stager; prints JSON. In the worker's environment."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, FirstBase, HeldBase, open_weights
from fleet_worker.checkpoint.stager_pass import StagerPass
from fleet_worker.checkpoint.stagers import Stagers

_ENOUGH = 1 << 60


def main() -> None:
    """Measure both ways, one round after the other, with the base in memory."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--cached", action="store_true", help="the files are in the page cache")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    stagers = Stagers()
    stagers.keep_ready()
    base = open_weights(str(folder / "base"), None, Bases())
    bring(base, stagers)
    held = HeldBase(base.digest(lambda: None), base.duplicate())
    bases = Bases((held,), FirstBase(str(folder / "base"), "base", held.digest))
    rows: dict[str, Any] = {name: {"seconds": [], "read_bytes": 0} for name in ("full", "delta")}
    digests = set()
    for number in range(arguments.rounds + arguments.cached):
        for name, row in rows.items():
            if not arguments.cached:
                forget(folder / name)
            began = time.perf_counter()
            checkpoint = open_weights(str(folder / name), None, bases)
            row["read_bytes"] = checkpoint.read_bytes
            bring(checkpoint, stagers)
            digests.add(checkpoint.digest(lambda: None))
            seconds = time.perf_counter() - began
            checkpoint.close()
            if number or not arguments.cached:  # the first round fills the cache
                row["seconds"].append(seconds)
    stagers.close()
    if len(digests) != 1:
        raise SystemExit(f"the delta has another digest than the full version: {digests}")
    json.dump(rows, sys.stdout)


def bring(checkpoint: Checkpoint, stagers: Stagers) -> None:
    """Read a version into sealed memory by a real stager. Errors: SystemExit, without room."""
    reading = StagerPass(stagers, {})
    if not checkpoint.read_in(reading, budget=_ENOUGH, check_cancelled=lambda: None):
        raise SystemExit("there is not enough memory for this measurement")


def forget(directory: Path) -> None:
    """Take the files of a directory out of the page cache."""
    for file in directory.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


if __name__ == "__main__":
    main()
