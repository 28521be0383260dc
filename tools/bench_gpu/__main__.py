"""`python -m bench_gpu`: pauses, staging and swaps with streams, a trainer's calls, and streams against stock.

Stock vLLM and the worker run at once on one GPU and take turns. `RLFLEET_BENCH_PYTHON` names a Python with
vLLM for it, in an environment without our packages. It needs 55 GB of GPU memory, and 90 GB of
memory, of which 36 GB are for files in /dev/shm (`--folder`):

    RLFLEET_BENCH_PYTHON=/opt/vllm/bin/python make bench-gpu

It takes at most six minutes, so what matters most comes first. The results name every part: with its figures,
or why it failed or was left out. They are written after each part. `--dry-run` runs the parts with a tiny
model and few streams, also on CPUs, and its figures mean nothing.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bench_gpu import driven
from bench_gpu.clients import ROUTES, Clients, Round
from bench_worker import pauses, servers, swaps
from bench_worker.report import REPOSITORY, RESULTS, machine
from bench_worker.servers import Server

_numbers = itertools.count(1)
_MEMORY = Path("/dev/shm")  # noqa: S108 - files in memory are meant
_MORE_SECONDS = 30
_NOTHING: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Fields:
        small, large: hidden size and layers of the models.
        streams: at once, in the parts with streams; the most important one first.
        tokens: of a stream.
        long_tokens: of a stream during which a version is staged or loaded.
        lead_seconds: from the begin of such streams to the stage or load.
        cache_bytes, staging_bytes: for each server.
        sleep_level: of the worker that a trainer drives.
        start_seconds: of a server, at most.
        lacks: part → why this machine cannot run it.
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
    sleep_level: int
    start_seconds: float
    lacks: Mapping[str, str]


NCCL = "driven: weights over NCCL"
ON_GPU = Plan(
    *((4096, 6), (4096, 80), (256, 64), 192, 640, 0.7, 2, 5, 8, 2 << 30, 36 << 30, 1, 150),
    lacks={},
)
DRY = Plan(
    *((64, 2), (64, 4), (4, 2), 24, 240, 0.1, 1, 1, 2, 64 << 20, 1 << 30, 0, 600),
    lacks={NCCL: "it needs a GPU"},
)
Parts = dict[str, Callable[..., Any]]


class Results:
    """One file, written after each part."""

    def __init__(self, target: Path, seconds: float, lacks: Mapping[str, str] = _NOTHING) -> None:
        """Begin with none.

        Args:
            target: The file.
            seconds: Parts that would begin later are left out. One that has begun gets half a minute more.
            lacks: Part → why this machine cannot run it.
        """
        self._target = target
        self._seconds = seconds
        self._ends = time.monotonic() + seconds
        self._lacks = lacks
        self.found: dict[str, Any] = {
            "machine": machine(),
            "gpu": _gpu(),
            "left_out": {},
            "failed": {},
        }

    def part(self, name: str, measure: Callable[..., Any], *given: Any) -> None:
        """Measure a part. Without success the others go on."""
        if why := self._lacks.get(name):
            self.found["left_out"][name] = why
        elif time.monotonic() > self._ends:
            self.found["left_out"][name] = f"{self._seconds:.0f} s were over"
        else:
            sys.stderr.write(f"bench-gpu: {name}\n")
            try:
                with _until(self._ends + _MORE_SECONDS):
                    self.found[name] = measure(*given)
            except Exception as error:  # noqa: BLE001 - a GPU is rare, so what can be measured is
                self.found["failed"][name] = f"{type(error).__name__}: {error}"[-2000:]
        self.write()

    def started(self, name: str, up: Callable[[], list[Server]]) -> list[Server]:
        """Wait for servers, and let the worker among them serve. Returns: none if they failed."""
        running = list[Server]()

        def start() -> dict[str, float]:
            servers = up()
            latch = swaps.admit(servers[-1])
            running.extend(servers)
            return {"latch": latch, **{each.name: each.up_seconds for each in servers}}

        self.part(f"{name}: start", start)
        return running

    def parts(self, running: list[Server], parts: Parts) -> None:
        """Measure parts on servers that were started. Without servers all are left out."""
        for name, measure in parts.items():
            if running:
                self.part(name, measure, *running)
            else:
                self.found["left_out"][name] = "its servers did not start"
        self.write()

    def write(self) -> None:
        """Write what is known."""
        self._target.parent.mkdir(parents=True, exist_ok=True)
        self._target.write_text(json.dumps(self.found, indent=2) + "\n")


@contextmanager
def _until(ends: float) -> Iterator[None]:
    """End what takes longer (`time.monotonic`) with a TimeoutError. In the main thread only."""

    def end(*_: object) -> None:
        raise TimeoutError("it took too long")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, ends - time.monotonic()))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(prog="python -m bench_gpu", description=__doc__)
    parser.add_argument("--dry-run", action="store_true", help="of all parts, with a tiny model")
    parser.add_argument(
        "--seconds", type=float, help="after which no part begins; default: 330, or 1800 if dry"
    )
    parser.add_argument(
        "--folder", type=Path, help="for the models; default: memory, if there is room"
    )
    parser.add_argument("--results", type=Path, help="default: bench/results/gpu.json")
    arguments = parser.parse_args()
    is_dry = arguments.dry_run
    plan = DRY if is_dry else ON_GPU
    default = REPOSITORY / "build" / "gpu-dry-run.json" if is_dry else RESULTS / "gpu.json"
    seconds = arguments.seconds or (1800 if is_dry else 330)
    results = Results(arguments.results or default, seconds, plan.lacks)
    place = arguments.folder or _folder()
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", dir=place) as name:
        _measure(results, Path(name), plan)
    sys.stdout.write(json.dumps(results.found, indent=2) + "\n")
    return 1 if results.found["failed"] else 0


def _measure(results: Results, folder: Path, plan: Plan) -> None:
    """In the order of what matters most. Servers start while the GPU has nothing to measure."""
    small, written = _begin_to_write(folder / "small", plan.small)
    results.part("small: files", written)
    rank = f"--adapter-rank={driven.RANK}"
    versions, written = _begin_to_write(folder / "adapters", plan.small, rank)
    results.part("driven: files", written)
    large, written = _begin_to_write(folder / "large", plan.large)  # it takes a minute or two
    with Clients(plan.processes) as clients, ExitStack() as running:
        up = running.enter_context(_both(folder / "small", folder, small, plan))
        driven_up = running.enter_context(_driven(folder, small, plan))
        both = results.started("small", up)
        results.parts(both, _small_parts(clients, small, plan))
        worker = results.started("driven", driven_up)
        results.part("large: files", written)
        up = running.enter_context(_both(folder / "large", folder, large, plan))
        results.parts(worker, _driven_parts(small, versions, plan))
        results.parts(results.started("large", up), _large_parts(large, plan))
        results.parts(both, _stream_parts(clients, plan))


def _small_parts(clients: Clients, steps: list[Path], plan: Plan) -> Parts:
    parts: Parts = {
        "small: pause": partial(pauses.measured, steps=steps, count=plan.swaps),
        "small: staging alone": lambda _, worker: _staged(worker, steps[1])[1],
    }
    for streams in plan.streams:
        parts |= {
            f"staging with {streams} streams": lambda _, worker, streams=streams: _staging(
                clients, worker, steps[0], streams, plan
            ),
            f"swap with {streams} streams": lambda _, worker, streams=streams: _swap(
                clients, worker, steps[1], streams, plan
            ),
        }
    return parts


def _driven_parts(steps: list[Path], versions: list[Path], plan: Plan) -> Parts:
    return {
        "driven: sleep": lambda worker: driven.sleep(worker, steps, plan.sleep_level),
        "driven: adapters": lambda worker: driven.adapters(worker, steps, versions),
        NCCL: lambda worker: driven.nccl(worker, steps),
    }


def _large_parts(steps: list[Path], plan: Plan) -> Parts:
    return {
        "large: pause": partial(pauses.measured, steps=steps, count=min(3, plan.swaps)),
        "large: staging alone": lambda _, worker: _staged(worker, steps[1])[1],
    }


def _stream_parts(clients: Clients, plan: Plan) -> Parts:
    return {
        f"{kind}, {streams} streams": partial(_streams, clients, kind, streams, plan)
        for streams, kind in itertools.product(plan.streams, ROUTES)
    }


def _both(
    place: Path, root: Path, steps: list[Path], plan: Plan
) -> AbstractContextManager[Callable[[], list[Server]]]:
    """Both servers on the first version, side by side. `place`: for their logs."""
    options = _options(plan)
    return servers.starting(
        servers.stock(place, steps[0], **options),
        servers.worker(place, steps[0], [root], staging_bytes=plan.staging_bytes, **options),
    )


def _driven(
    folder: Path, steps: list[Path], plan: Plan
) -> AbstractContextManager[Callable[[], list[Server]]]:
    """A worker that a trainer drives, on the first version."""
    options = _options(plan)
    if plan.sleep_level:
        options["flags"].append("--enable-sleep-mode")
    worker = servers.worker(
        folder / "adapters",
        steps[0],
        [folder],
        options=driven.OPTIONS,
        more_environment=driven.ENVIRONMENT,
        **options,
    )
    return servers.starting(worker)


def _options(plan: Plan) -> dict[str, Any]:
    return {
        "threads": 1,
        "cache_bytes": plan.cache_bytes,
        "flags": [f"--max-num-seqs={max(plan.streams)}"],
        "start_seconds": plan.start_seconds,
    }


def _streams(
    clients: Clients, kind: str, streams: int, plan: Plan, stock: Server, worker: Server
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


def _begin_to_write(
    folder: Path, shape: tuple[int, int], *flags: str
) -> tuple[list[Path], Callable[[], float]]:
    """Write two versions of a model, or of what else flags say (`tools/checkpoints.py`).

    Returns:
        Their directories, and what waits until they are there and returns the seconds that it took.
    """
    began = time.monotonic()
    steps = [folder / f"step_{number}" for number in (1, 2)]
    shaped = [f"--hidden={shape[0]}", f"--layers={shape[1]}", *flags]
    writing = []
    for seed, step in enumerate(steps):
        command = [servers.interpreter(), str(pauses.SCRIPT), str(step), f"--seed={seed}", *shaped]
        writing.append(subprocess.Popen(command, stdout=subprocess.DEVNULL))

    def wait() -> float:
        codes = [each.wait() for each in writing]
        if any(codes):
            raise RuntimeError(f"files for {shape[1]} layers could not be written to {folder}")
        return time.monotonic() - began

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
