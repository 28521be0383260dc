"""`python -m bench_gpu`: start, pauses, streams, and staging and swaps while they run.

Stock vLLM and the worker run at once on one GPU and take turns. `RLFLEET_BENCH_PYTHON` names a Python with
vLLM for it, in an environment without our packages. It needs 45 GB of GPU memory, and 80 GB of
memory, of which 36 GB are for files in /dev/shm (`--folder`):

    RLFLEET_BENCH_PYTHON=/opt/vllm/bin/python make bench-gpu

It takes at most six minutes: parts that would begin later are left out, and the results say so. They are
written after each part. `--dry-run` runs all parts with a tiny model and few streams, also on CPUs, and its
figures mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench_gpu.clients import ROUTES, Clients, Round
from bench_worker import pauses, servers, swaps
from bench_worker.report import REPOSITORY, RESULTS, machine
from bench_worker.servers import Server

_numbers = itertools.count(1)
_MEMORY = Path("/dev/shm")  # noqa: S108 - files in memory are meant


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Fields:
        small, large: hidden size and layers of the models.
        streams: at once, in the parts with streams.
        tokens: of a stream.
        long_tokens: of a stream during which a version is staged or loaded.
        lead_seconds: from the begin of such streams to the stage or load.
        cache_bytes, staging_bytes: for each server.
    """

    small: tuple[int, int]
    large: tuple[int, int]
    streams: tuple[int, ...]
    tokens: int
    long_tokens: int
    lead_seconds: float
    rounds: int
    swaps: int
    processes: int
    cache_bytes: int
    staging_bytes: int


ON_GPU = Plan((4096, 6), (4096, 80), (64, 256), 192, 640, 0.7, 2, 5, 8, 2 << 30, 36 << 30)
DRY = Plan((64, 2), (64, 4), (2, 4), 24, 240, 0.1, 1, 1, 2, 64 << 20, 1 << 30)


class Results:
    """One file, written after each part."""

    def __init__(self, target: Path, seconds: float) -> None:
        """`seconds`: parts that would begin later are left out."""
        self._target = target
        self._ends = time.monotonic() + seconds
        self.found: dict[str, Any] = {
            "machine": machine(),
            "gpu": _gpu(),
            "left_out": [],
            "failed": {},
        }

    def part(self, name: str, measure: Callable[..., Any], *given: Any) -> None:
        """Measure a part. Without success the others go on."""
        if time.monotonic() > self._ends:
            self.found["left_out"].append(name)
        else:
            sys.stderr.write(f"bench-gpu: {name}\n")
            try:
                self.found[name] = measure(*given)
            except Exception as error:  # noqa: BLE001 - a GPU is rare, so what can be measured is
                self.found["failed"][name] = f"{type(error).__name__}: {error}"[-2000:]
        self.write()

    def write(self) -> None:
        """Write what is known."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._target.write_text(json.dumps(self.found, indent=2) + "\n")


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench_gpu", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="of all parts, with a tiny model")
    parser.add_argument("--seconds", type=float, default=330, help="after which no part begins")
    parser.add_argument(
        "--folder", type=Path, help="for the models; default: memory, if there is room"
    )
    parser.add_argument("--results", type=Path, help="default: bench/results/gpu.json")
    arguments = parser.parse_args()
    plan = DRY if arguments.dry_run else ON_GPU
    default = (
        REPOSITORY / "build" / "gpu-dry-run.json" if arguments.dry_run else RESULTS / "gpu.json"
    )
    results = Results(arguments.results or default, arguments.seconds)
    with tempfile.TemporaryDirectory(
        prefix="bench-gpu-", dir=arguments.folder or _folder()
    ) as name:
        folder = Path(name)
        small, written = _begin_to_write(folder / "small", plan.small)
        written()
        large, written = _begin_to_write(folder / "large", plan.large)  # it takes a minute or two
        with Clients(plan.processes) as clients:
            _small(results, folder, small, clients, plan)
        written()
        _large(results, folder, large, plan)
    sys.stdout.write(json.dumps(results.found, indent=2) + "\n")
    return 1 if results.found["failed"] else 0


def _small(results: Results, folder: Path, steps: list[Path], clients: Clients, plan: Plan) -> None:
    with _both(results, "small", folder, steps, plan) as (stock, worker):
        results.part("small: pause", pauses.measured, stock, worker, steps, plan.swaps)
        for streams, kind in itertools.product(plan.streams, ROUTES):
            name = f"{kind}, {streams} streams"
            results.part(name, _streams, clients, stock, worker, kind, streams, plan)
        results.part("small: staging alone", _staging_alone, worker, steps[1])
        for streams in plan.streams:
            beside = f"beside {streams} streams"
            results.part(f"staging {beside}", _staging, clients, worker, steps[0], streams, plan)
            results.part(f"swap {beside}", _swap, clients, worker, steps[1], streams, plan)


def _large(results: Results, folder: Path, steps: list[Path], plan: Plan) -> None:
    with _both(results, "large", folder, steps, plan) as (stock, worker):
        results.part("large: pause", pauses.measured, stock, worker, steps, min(3, plan.swaps))
        results.part("large: staging alone", _staging_alone, worker, steps[1])


@contextmanager
def _both(
    results: Results, name: str, folder: Path, steps: list[Path], plan: Plan
) -> Iterator[tuple[Server, Server]]:
    """Both servers on the first version, side by side. The worker serves."""
    options: dict[str, Any] = {
        "threads": 1,
        "cache_bytes": plan.cache_bytes,
        "flags": [f"--max-num-seqs={max(plan.streams)}"],
    }
    with (
        servers.stock(folder, steps[0], **options) as stock,
        servers.worker(
            folder, steps[0], [folder], staging_bytes=plan.staging_bytes, **options
        ) as worker,
    ):
        latch = swaps.admit(worker)
        up = {"stock": stock.up_seconds, "worker": worker.up_seconds, "latch": latch}
        results.part(f"{name}: start", dict, up)
        yield stock, worker


def _streams(
    clients: Clients, stock: Server, worker: Server, kind: str, streams: int, plan: Plan
) -> dict[str, Any]:
    """Rounds in turn. The first one of each warms up."""
    found: dict[str, list[dict[str, Any]]] = {"stock": [], "worker": []}
    for number in range(plan.rounds + 1):
        for server in (stock, worker) if number % 2 else (worker, stock):
            took = clients.begin(server, kind, streams, plan.tokens)()
            if number:
                labels = took.labels if server is worker else {}
                found[server.name].append(took.figures | labels)
    keys = ("tokens_per_second", "cpu_seconds_per_10000_tokens")
    return {**found, **{f"{key}_ratio": _ratio(found, key) for key in keys}}


def _ratio(found: dict[str, list[dict[str, Any]]], key: str) -> float | None:
    """The worker's figure / stock's; None if stock's rounds were too short for the clock."""
    pairs = [
        (ours[key], theirs[key])
        for ours, theirs in zip(found["worker"], found["stock"], strict=True)
    ]
    return statistics.median(a / b for a, b in pairs) if all(b for _, b in pairs) else None


def _staged(worker: Server, path: Path) -> tuple[str, dict[str, Any]]:
    """Stage under a label of its own. Returns: the label, and the figures."""
    version, began = f"stage-{next(_numbers)}", time.perf_counter()
    copies = swaps.stage(worker, version, path)
    return version, {"stage_seconds": time.perf_counter() - began, "copies": copies}


def _staging_alone(worker: Server, path: Path) -> dict[str, Any]:
    return _staged(worker, path)[1]


def _staging(
    clients: Clients, worker: Server, path: Path, streams: int, plan: Plan
) -> dict[str, Any]:
    end = clients.begin(worker, "generate", streams, plan.long_tokens)
    time.sleep(plan.lead_seconds)
    (_, staged), staged_at = _staged(worker, path), time.time()
    return {**staged, **_beside(end(), staged_at)}


def _swap(clients: Clients, worker: Server, path: Path, streams: int, plan: Plan) -> dict[str, Any]:
    version, _ = _staged(worker, path)
    end = clients.begin(worker, "generate", streams, plan.long_tokens)
    time.sleep(plan.lead_seconds)
    timings, swapped_at = swaps.swap_staged(worker, version), time.time()
    return {**timings, **_beside(end(), swapped_at)}


def _beside(took: Round, done_at: float) -> dict[str, Any]:
    """The figures of streams, and how many still ran when something else was done."""
    left = sum(each.ended > done_at for each in took.streams)
    return {"streams_that_ran_on": left, **took.figures, **took.labels}


def _begin_to_write(folder: Path, shape: tuple[int, int]) -> tuple[list[Path], Callable[[], None]]:
    """Write two versions of a model. Returns: their directories, and what waits until they are there."""
    steps = [folder / f"step_{number}" for number in (1, 2)]
    shaped = [f"--hidden={shape[0]}", f"--layers={shape[1]}"]
    writing = []
    for seed, step in enumerate(steps):
        command = [servers.interpreter(), str(pauses.SCRIPT), str(step), f"--seed={seed}", *shaped]
        writing.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def wait() -> None:
        codes = [each.wait() for each in writing]
        if any(codes):
            raise RuntimeError(f"a model of {shape[1]} layers could not be written to {folder}")

    return steps, wait


def _folder() -> Path | None:
    """Files in memory, as a trainer on the same machine writes them; None for the default."""
    is_large = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > 40e9
    return _MEMORY if is_large else None


def _gpu() -> str:
    """The GPU and its driver, in words; empty without one."""
    command = [
        "nvidia-smi",
        "--query-gpu=name,memory.total,driver_version",
        "--format=csv,noheader",
    ]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
