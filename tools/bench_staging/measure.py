"""Stages checkpoints in turn by both ways, in the environment that has torch; prints JSON.

The way before: copy each file into memory (or read it once, beyond the budget), then look for
infinities through a mapping, without a digest, one file after the other. It is kept here for the
comparison only: a file that is cut off under a mapping ends the process.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.finite import own_pass
from fleet_worker.checkpoint.opening import open_checkpoint

_CHUNK = 64 * 1024 * 1024
_PIECE = 512 * 1024


def main() -> None:
    """Measure each case in both ways, one round after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    # On a busy machine the threads of one operation wait for each other most of the time.
    torch.set_num_threads(1)
    rows = []
    for files in (1, 8):
        path = _write(arguments.folder / str(files), files, arguments.bytes)
        for held in (True, False):
            row: dict[str, object] = {"files": files, "held": held}
            for name in ("before_seconds", "now_seconds"):
                row[name] = []
            for number in range(arguments.rounds + 1):
                for name, way in (("before_seconds", _before), ("now_seconds", _now)):
                    seconds = _timed(path, way, held=held)
                    if number:  # the first round warms the page cache
                        row[name].append(seconds)  # type: ignore[attr-defined]  # the lists above
            rows.append(row)
    json.dump({"bytes": arguments.bytes, "rows": rows}, sys.stdout)


def _timed(path: Path, way: Callable[[Checkpoint, bool], None], *, held: bool) -> float:
    checkpoint = open_checkpoint(str(path), None)
    began = time.perf_counter()
    way(checkpoint, held)
    seconds = time.perf_counter() - began
    checkpoint.close()
    return seconds


def _now(checkpoint: Checkpoint, held: bool) -> None:  # noqa: FBT001 - one of two ways
    budget = 1 << 60 if held else 0
    if checkpoint.read_in(own_pass({}), budget=budget, check_cancelled=lambda: None) is not held:
        raise SystemExit("there is not enough memory for this measurement; use less --bytes")
    checkpoint.digest(lambda: None)


def _before(checkpoint: Checkpoint, held: bool) -> None:  # noqa: FBT001 - one of two ways
    copies = [_copied(file.descriptor, file.state.size, held=held) for file in checkpoint.files]
    for file, copy in zip(checkpoint.files, copies, strict=True):
        _look(file.descriptor if copy is None else copy, file.state.size)
    for copy in copies:
        if copy is not None:
            os.close(copy)


def _copied(descriptor: int, size: int, *, held: bool) -> int | None:
    position = 0
    if held:
        memory = os.memfd_create("before")
        while position < size:
            position += os.sendfile(memory, descriptor, position, min(_CHUNK, size - position))
        return memory
    scratch = bytearray(min(_CHUNK, size))
    while position < size:
        position += os.preadv(descriptor, [scratch], position)
    return None


def _look(descriptor: int, size: int) -> None:
    with mmap.mmap(descriptor, size, prot=mmap.PROT_READ) as content:
        words = torch.frombuffer(content, dtype=torch.int16, count=size // 2)
        buffer = torch.empty(_PIECE // 2, dtype=torch.int16)
        for begin in range(0, words.numel(), _PIECE // 2):
            part = words[begin : begin + _PIECE // 2]
            int(torch.bitwise_and(part, 0x7FFF, out=buffer[: part.numel()]).max())
            del part
        del words


def _write(path: Path, files: int, size: int) -> Path:
    """A checkpoint of bfloat16 tensors of 64 MiB."""
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    length = min(64 << 20, size // files)
    values = torch.randn(length // 2, generator=torch.Generator().manual_seed(1))
    content = values.to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    weight_map: dict[str, str] = {}
    for number in range(files):
        name = f"model-{number}.safetensors"
        tensors = [f"t{number}.{index}" for index in range(size // files // length)]
        header = {
            tensor: {
                "dtype": "BF16",
                "shape": [length // 2],
                "data_offsets": [index * length, (index + 1) * length],
            }
            for index, tensor in enumerate(tensors)
        }
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (path / name).open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _ in tensors:
                out.write(content)
        weight_map |= dict.fromkeys(tensors, name)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return path


if __name__ == "__main__":
    main()
