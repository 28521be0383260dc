"""Brings a version into the real vLLM as users do today and as a worker does, in turn; prints JSON.

In the worker's environment, behind a limited store. The ways of today end with vLLM's own `reload_weights`, which
reads all bytes in the pause. The local copy is in the page cache, as on a fast disk.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

from bench_bytes.measure import bring, forget
from bench_bytes.swap import PLAIN, call, check, compare, load, load_in_place, worker_on
from bench_bytes.write import WEIGHTS
from fleet_worker.checkpoint.checkpoint import Checkpoint
from fleet_worker.checkpoint.delta_chain import Bases, HeldBase, open_weights
from fleet_worker.checkpoint.stagers import Stagers

_INDEX = "model.safetensors.index.json"
Step = Callable[[], object]


def main() -> None:
    """Measure the seconds before the pause and those in it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()
    with _bench(arguments.folder) as bench:
        for number in range(arguments.rounds + 1):
            for way in bench.ways:
                bench.take(way, is_counted=number > 0)  # the first round warms up
    json.dump(bench.rows, sys.stdout)


class _Bench:
    """An engine with the base, the files of both versions, and a local copy of the base."""

    def __init__(self, folder: Path, held: HeldBase, stagers: Stagers) -> None:
        self._folder, self._copy = folder, folder / "copy"
        self._copy.mkdir()
        self._base, self._held, self._stagers = _link(held.checkpoint), held, stagers
        self._engine = worker_on(folder / "base", PLAIN)
        self._staged: Checkpoint | None = None
        self._sums: Any = None
        self.ways: dict[str, tuple[str, Step, Step]] = {
            "reload": ("full", lambda: None, partial(self._reload, folder / "full")),
            "copy": ("full", self._copy_all, partial(self._reload, self._copy)),
            "apply": ("delta", self._apply, partial(self._reload, self._copy)),
            "full": ("full", partial(self._stage, "full"), self._load),
            "delta": ("delta", partial(self._stage, "delta"), self._load),
            "in place": ("delta", self._stage_and_compare, self._load_in_place),
        }
        self.rows: dict[str, Any] = {
            way: {"before": [], "pause": [], "read_bytes": _size(folder / version)}
            for way, (version, *_) in self.ways.items()
        }

    def take(self, way: str, *, is_counted: bool) -> None:
        """Bring the version into the engine in one way, and the base again. Errors: SystemExit, for other weights."""
        version, before, in_pause = self.ways[way]
        if way == "apply":
            shutil.copytree(self._folder / "base", self._copy, dirs_exist_ok=True)
        os.sync()  # what is still written would disturb the next way
        forget(self._folder / version)
        seconds = []
        for step in (before, in_pause):
            began = time.perf_counter()
            step()
            seconds.append(time.perf_counter() - began)
        sums = call(self._engine, "rlfleet_checksum")
        self._sums = self._sums or sums
        if sums != self._sums:
            raise SystemExit(f"the engine has other weights after {way!r}")
        if self._staged is not None:
            self._staged.close()
            self._staged = None
        load(self._engine, self._base)
        if is_counted:
            self.rows[way]["before"].append(seconds[0])
            self.rows[way]["pause"].append(seconds[1])

    def _reload(self, directory: Path) -> None:
        self._engine.reload_weights(weights_path=str(directory))

    def _copy_all(self) -> None:
        source = f"{self._folder / 'full'}/."
        subprocess.run(["cp", "-r", "--reflink=never", source, str(self._copy)], check=True)

    def _apply(self) -> None:
        apply(self._folder / "delta", self._copy / WEIGHTS)

    def _stage(self, version: str) -> None:
        bases = Bases([HeldBase(self._held.digest, self._held.checkpoint.duplicate())])
        self._staged = open_weights(str(self._folder / version), None, bases)
        bases.close()
        bring(self._staged, self._stagers)

    def _stage_and_compare(self) -> None:
        self._stage("delta")
        compare(self._engine, _link(self._staged), self._base)

    def _load(self) -> None:
        load(self._engine, _link(self._staged))

    def _load_in_place(self) -> None:
        load_in_place(self._engine, _link(self._staged), self._base)


@contextmanager
def _bench(folder: Path) -> Iterator[_Bench]:
    stagers = Stagers()
    stagers.keep_ready()
    base = open_weights(str(folder / "base"), None, Bases())
    bring(base, stagers)
    yield _Bench(folder, HeldBase(base.digest(lambda: None), base), stagers)
    base.close()
    stagers.close()


def _link(checkpoint: Checkpoint | None) -> str:
    if checkpoint is None:
        raise SystemExit("nothing is staged")
    (file,) = checkpoint.files
    return checkpoint.link_of(file)


def _size(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.safetensors"))


def apply(delta: Path, file: Path) -> None:
    """Change a local file of weights by a delta, tensor by tensor, as receivers of slime's form do.

    It follows the description of the form: each tensor's checksum, no digest of the whole. All processors take part.
    """
    content = np.memmap(file, np.uint8, "r+")
    places, _ = _header(content)
    index = json.loads((delta / _INDEX).read_text())
    encoding = index["metadata"]["delta_encoding"]

    def change(frames: np.ndarray, name: str, frame: slice, checksum: str) -> None:
        packed = zstandard.ZstdDecompressor().decompressobj().decompress(frames[frame].data)
        tensor, found = content[places[name]], np.frombuffer(packed, np.uint8)
        if encoding == "xor":
            np.bitwise_xor(tensor, found, out=tensor)
        else:
            (count,) = found[:4].view("<u4")
            values = 4 + 4 * int(count)
            tensor[found[4:values].view("<u4")] = found[values:]
        check(
            "" if xxhash.xxh3_128(tensor.data).hexdigest() == checksum else f"{name} is another one"
        )

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        for name in sorted({*index["weight_map"].values()}):
            frames = np.fromfile(delta / name, np.uint8)
            tensors, sums = _header(frames)
            list(threads.map(lambda n: change(frames, n, tensors[n], sums[n]), tensors))  # noqa: B023 - used at once


def _header(content: np.ndarray) -> tuple[dict[str, slice], dict[str, str]]:
    """Return where the tensors of a safetensors file lie, and its texts."""
    begin = 8 + int(content[:8].view("<u8")[0])
    entries = json.loads(content[8:begin].tobytes())
    texts = entries.pop("__metadata__", {})
    offsets = {name: entry["data_offsets"] for name, entry in entries.items()}
    return {
        name: slice(begin + first, begin + last) for name, (first, last) in offsets.items()
    }, texts


if __name__ == "__main__":
    main()
