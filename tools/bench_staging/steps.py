"""How many bytes one core reads, checks, digests and writes in a second; prints JSON."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fleet_worker.checkpoint.blocks import block_bytes
from fleet_worker.checkpoint.finite import inspect
from fleet_worker.checkpoint.format import TensorSpec
from fleet_worker.checkpoint.memory import MemoryFile

_PIECE = 4 << 20
_ROUNDS = 3


def main() -> None:
    """Measure each step alone, on pieces as long as those of a pass."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    size = arguments.file.stat().st_size // _PIECE * _PIECE
    positions = range(0, size, _PIECE)
    source = os.open(arguments.file, os.O_RDONLY)
    piece = memoryview(bytearray(_PIECE))
    os.preadv(source, [piece], _PIECE)  # behind the header
    spec = TensorSpec("w", "BF16", (_PIECE // 2,), 0, _PIECE)

    def read() -> None:
        for position in positions:
            os.preadv(source, [piece], position)

    def digest() -> None:
        sha = hashlib.sha256()
        for _ in positions:
            sha.update(piece)

    def check() -> None:
        length = block_bytes(spec)
        for _ in positions:
            for begin in range(0, _PIECE, length):
                inspect(spec, piece[begin : begin + length])

    def write() -> None:
        memory = MemoryFile("w", size)
        for position in positions:
            memory.write(piece, position)
        memory.close()

    steps = {"read": read, "digest": digest, "finite": check, "write": write}
    json.dump({name: size / _fastest(step) for name, step in steps.items()}, sys.stdout)


def _fastest(step: Callable[[], None]) -> float:
    seconds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
