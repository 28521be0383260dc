"""`python -m bench_worker`: see `make bench-worker`."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import envs
from bench_worker import load, report, servers, swaps
from bench_worker.load import Round

TINY_CACHE = 64 * 1024 * 1024
LARGE = {"hidden": 4096, "layers": 6}
"""About 1.2 GB in bfloat16."""
STREAMS = ((1, 30), (4, 25), (16, 12))
"""Streams at once, and how many requests of 64 tokens each of them makes in a round."""


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_worker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="of each kind, on each server")
    parser.add_argument("--swaps", type=int, default=5)
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": report.machine(), "vllm": _vllm_version()}
    with tempfile.TemporaryDirectory(prefix="bench-worker-") as name:
        folder = Path(name)
        _write(folder / "tiny", seed=1)
        results["public_port"] = asyncio.run(_public_port(folder, arguments.rounds))
        for number in (1, 2):
            _write(folder / "large" / f"step_{number}", seed=number, **LARGE)
        results["swap"], results["start"] = _swaps(folder, arguments.swaps)
    report.write(results)
    sys.stdout.write(report.table(results))
    return 0


async def _public_port(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Both servers at once, asked in turn: what the machine does meanwhile, it does to both."""
    options = {"threads": 1, "cache_bytes": TINY_CACHE}
    rows = []
    with (
        servers.stock(folder, folder / "tiny", **options) as stock,
        servers.worker(folder, folder / "tiny", [folder], **options) as worker,
    ):
        swaps.admit(worker)
        async with stock.client() as one, worker.client() as other:
            for streamed in (True, False):
                for streams, requests in STREAMS:
                    found: dict[str, list[Round]] = {"stock": [], "worker": []}
                    for number in range(rounds + 1):
                        pairs = [("stock", one), ("worker", other)]
                        for name, client in pairs if number % 2 else pairs[::-1]:
                            took = await load.generate(
                                client, streams=streams, requests=requests, streamed=streamed
                            )
                            if number:  # the first one warms up
                                found[name].append(took)
                    rows.append(_row(streams, found, streamed=streamed))
    return rows


def _row(streams: int, found: dict[str, list[Round]], *, streamed: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"streams": streams, "streamed": streamed}
    for name, rounds in found.items():
        latencies = [seconds for each in rounds for seconds in each.latencies]
        row[name] = {
            "tokens_per_second": statistics.median(each.tokens_per_second for each in rounds),
            "p50": load.percentile(latencies, 0.50),
            "p99": load.percentile(latencies, 0.99),
            "requests": len(latencies),
        }
    # Of neighbours: what disturbs the machine for a while disturbs both.
    pairs = zip(found["worker"], found["stock"], strict=True)
    row["tokens_per_second_ratio"] = statistics.median(
        ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs
    )
    for share in ("p50", "p99"):
        row[f"{share}_ratio"] = row["worker"][share] / row["stock"][share]
    return row


def _swaps(folder: Path, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """One server after the other: each may have the whole machine."""
    steps = [folder / "large" / f"step_{number}" for number in (1, 2)]
    options = {"threads": 2, "cache_bytes": TINY_CACHE}
    swap: dict[str, float] = {"size_bytes": swaps.size_of(steps[0])}
    with servers.stock(folder, steps[0], **options) as stock:
        start = {"stock": stock.up_seconds}
        warm, cold = [], []
        for number in range(count):
            path = steps[(number + 1) % 2]
            warm.append(swaps.bare_reload(stock, path))
            swaps.forget(steps[number % 2])
            cold.append(swaps.bare_reload(stock, steps[number % 2]))
        swap |= {"bare_warm": statistics.median(warm), "bare_cold": statistics.median(cold)}
    with servers.worker(folder, steps[0], [folder], **options) as worker:
        start |= {"joining": worker.up_seconds, "latch": swaps.admit(worker)}
        pauses: dict[bool, list[dict[str, float]]] = {False: [], True: []}
        for number in range(2 * count):
            for drop in (False, True):
                path = steps[(number + drop) % 2]
                if drop:
                    swaps.forget(path)  # staging reads it from the disk, too
                # A label of its own each time: the same again would be nothing to do.
                label = f"{path.name}-{number}-{int(drop)}"
                pauses[drop].append(swaps.swap(worker, label, path, drop_cache=drop))
        for drop, name in ((False, "warm"), (True, "cold")):
            swap[f"pause_{name}"] = statistics.median(p["paused_seconds"] for p in pauses[drop])
        swap["stage_cold"] = statistics.median(p["stage_seconds"] for p in pauses[True])
    swap["pause_over_bare"] = swap["pause_warm"] / swap["bare_warm"]
    swap["staged_over_unstaged"] = swap["pause_cold"] / swap["bare_cold"]
    return swap, start


def _write(target: Path, *, seed: int, **shape: int) -> None:
    """A checkpoint, by the environment that has torch."""
    script = Path(__file__).resolve().parents[1] / "checkpoints.py"
    flags = [f"--{key}={value}" for key, value in shape.items()]
    python = str(envs.interpreter_of("worker"))
    command = [python, str(script), str(target), f"--seed={seed}", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _vllm_version() -> str:
    code = "import vllm; print(vllm.__version__)"
    command = [str(envs.interpreter_of("worker")), "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


if __name__ == "__main__":
    sys.exit(main())
