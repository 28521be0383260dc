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

from bench_worker import load, report, servers, store, streams, swaps
from bench_worker.load import Round
from bench_worker.servers import Server

TINY_CACHE = 64 * 1024 * 1024
LARGE = {"hidden": 4096, "layers": 6}
"""About 1.2 GB in bfloat16."""
STREAMS = ((1, 10), (4, 8), (16, 4))
"""Streams at once, and how many requests of 64 tokens each of them makes in a round: about a
second, so that two neighbouring rounds meet the same machine."""


PARTS = ("port", "streams", "swap")


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_worker", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25, help="of each kind, on each server")
    parser.add_argument(
        "--stream-pairs", type=int, default=7, help="least pairs of rounds with many streams"
    )
    parser.add_argument("--swaps", type=int, default=5)
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help="the others keep their published figures; default: %(default)s",
    )
    parser.add_argument(
        "--flame", action="store_true", help="only a flame graph of 256 streams in docs/images"
    )
    arguments = parser.parse_args()
    if arguments.flame:
        with tempfile.TemporaryDirectory(prefix="bench-worker-") as name:
            _write(Path(name, "tiny"), seed=1)
            streams.profiled(Path(name, "tiny"))
        return 0
    parts = arguments.parts.split(",")
    results = {} if set(parts) >= set(PARTS) else report.published()
    with tempfile.TemporaryDirectory(prefix="bench-worker-") as name:
        folder = Path(name)
        _write(folder / "tiny", seed=1)
        if "port" in parts:
            results |= {"machine": report.machine(), "vllm": _vllm_version()}
            results["public_port"] = asyncio.run(_public_port(folder, arguments.rounds))
        if "streams" in parts:
            results["streams"] = {"machine": report.machine(), "vllm": _vllm_version(), "rows": []}
            _say(f"many streams: at least {arguments.stream_pairs} pairs of rounds of both")
            for row in streams.measured(folder / "tiny", arguments.stream_pairs):
                spread = " to ".join(f"{ratio:.3f}" for ratio in row["cpu_ratio_quartiles"])
                ratio = f"{row['cpu_ratio']:.3f} ({spread})"
                _say(f"{row['streams']} at once, {row['kind']}: {ratio}, {row['pairs']} pairs")
                results["streams"]["rows"].append(row)
        if "swap" in parts:
            for number in (1, 2):
                _write(folder / "large" / f"step_{number}", seed=number, **LARGE)
            results["swap"], results["start"] = _swaps(folder, arguments.swaps)
    report.write(results)
    sys.stdout.write(report.table(results))
    return 0


async def _public_port(folder: Path, rounds: int) -> list[dict[str, Any]]:
    """Both servers at once, asked in turn: what the machine does meanwhile, it does to both."""
    options: dict[str, Any] = {"threads": 1, "cache_bytes": TINY_CACHE}
    rows = []
    with (
        servers.stock(folder, folder / "tiny", **options) as stock,
        servers.worker(folder, folder / "tiny", [folder], **options) as worker,
    ):
        swaps.admit(worker)
        async with stock.client() as one, worker.client() as other:
            for streamed in (True, False):
                for streams, requests in STREAMS:
                    kind = "streamed" if streamed else "whole replies"
                    _say(f"public port, {streams} at once, {kind}: {rounds} rounds of both")
                    found: dict[str, list[Round]] = {"stock": [], "worker": []}
                    for number in range(rounds + 1):
                        pairs = [(stock, one), (worker, other)]
                        for server, client in pairs if number % 2 else pairs[::-1]:
                            took = await load.generate(
                                server,
                                client,
                                streams=streams,
                                requests=requests,
                                streamed=streamed,
                            )
                            if number:  # the first one warms up
                                found[server.name].append(took)
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
            "cpu_seconds_per_10000_tokens": 10_000
            * sum(each.cpu_seconds for each in rounds)
            / (len(latencies) * load.TOKENS),
            "requests": len(latencies),
        }
    # Pairs of neighbouring rounds: a disturbance of the machine affects both.
    pairs = zip(found["worker"], found["stock"], strict=True)
    row["tokens_per_second_ratio"] = statistics.median(
        ours.tokens_per_second / theirs.tokens_per_second for ours, theirs in pairs
    )
    for key in ("p50", "p99", "cpu_seconds_per_10000_tokens"):
        row[f"{key}_ratio"] = row["worker"][key] / row["stock"][key]
    return row


def _swaps(folder: Path, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """One server after the other: each may have the whole machine."""
    steps = [folder / "large" / f"step_{number}" for number in (1, 2)]
    options: dict[str, Any] = {"threads": 2, "cache_bytes": TINY_CACHE}
    swap: dict[str, float] = {"size_bytes": swaps.size_of(steps[0])}
    with servers.stock(folder, steps[0], **options) as stock:
        start = {"stock": stock.up_seconds}
        warm, cold, slow = [], [], []
        _say(f"bare reloads: {count} of each kind")
        for number in range(count):
            path = steps[(number + 1) % 2]
            warm.append(swaps.bare_reload(stock, path))
            swaps.drop_from_cache(steps[number % 2])
            cold.append(swaps.bare_reload(stock, steps[number % 2]))
        swap |= {"bare_warm": statistics.median(warm), "bare_cold": statistics.median(cold)}
        with store.limited(stock.pid, folder) as is_limited:
            for number in range(count if is_limited else 0):
                swaps.drop_from_cache(steps[number % 2])
                slow.append(swaps.bare_reload(stock, steps[number % 2]))
    with servers.worker(folder, steps[0], [folder], **options) as worker:
        start |= {"joining": worker.up_seconds, "latch": swaps.admit(worker)}
        for name, drop in (("warm", False), ("cold", True)):
            swap |= _staged(worker, steps, count, name, drop=drop)
        with store.limited(worker.pid, folder) as is_limited:
            if is_limited:
                swap |= _staged(worker, steps, count, "slow", drop=True)
    swap["pause_over_bare"] = swap["pause_warm"] / swap["bare_warm"]
    swap["cold_over_unstaged"] = swap["pause_cold"] / swap["bare_cold"]
    if slow and "pause_slow" in swap:
        swap["bare_slow"] = statistics.median(slow)
        swap["slow_over_unstaged"] = swap["pause_slow"] / swap["bare_slow"]
    return swap, start


def _staged(
    worker: Server, steps: list[Path], count: int, name: str, *, drop: bool
) -> dict[str, float]:
    _say(f"staged swaps, {name}: {count}")
    found = []
    for number in range(count):
        path = steps[(number + 1) % 2]
        if drop:
            swaps.drop_from_cache(path)  # staging reads it from the store, too
        # A label of its own each time: the same again would be nothing to do.
        found.append(swaps.swap(worker, f"{path.name}-{name}-{number}", path, drop_cache=drop))
    return {
        f"pause_{name}": statistics.median(each["paused_seconds"] for each in found),
        f"stage_{name}": statistics.median(each["stage_seconds"] for each in found),
    }


def _say(what: str) -> None:
    """Print the current measurement to standard error; the table goes to standard output."""
    sys.stderr.write(f"bench-worker: {what}\n")


def _write(target: Path, *, seed: int, **shape: int) -> None:
    """A checkpoint, by the environment that has torch."""
    script = Path(__file__).resolve().parents[1] / "checkpoints.py"
    flags = [f"--{key}={value}" for key, value in shape.items()]
    command = [servers.interpreter(), str(script), str(target), f"--seed={seed}", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _vllm_version() -> str:
    code = "import vllm; print(vllm.__version__)"
    command = [servers.interpreter(), "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.split()[-1]


if __name__ == "__main__":
    sys.exit(main())
