"""`make bench-api`: one call to a fleet's address, next to a client that calls all workers by itself.

The run has an API server with etcd, the real operator, the real RL API, and fake workers in one process.
Each fake worker has its own address. Results go to bench/results/api.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

from bench_api import trainers
from bench_api.rl_api import RlApi
from bench_scale import place
from bench_scale.fakes import FakeFleet
from bench_scale.fleet import NAME, fleet_of
from bench_scale.operator import Operator
from bench_worker.report import machine, publish, where
from devcluster import Cluster, DevclusterError
from free_ports import free_port

SIZES = (16, 256, 1000)
GOALS = {256: 1.0, 1000: 1.0}
"""Workers → most seconds of a call by address, divided by those of the fan-out with aiohttp."""
BY_ADDRESS, AIOHTTP, HTTPX = "by address", "aiohttp", "httpx"
_POLL_SECONDS = 0.2


def main() -> int:
    """Read the command line, measure, write the figures, print the table. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-api", description=__doc__)
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--sizes", default=sizes, help=f"numbers of workers ({sizes})")
    parser.add_argument(
        "--rounds", type=int, default=10, help="pauses and resumptions of each (10)"
    )
    parsed = parser.parse_args()
    chosen = [int(word) for word in str(parsed.sizes).split(",") if word]
    results: dict[str, Any] = {"machine": machine(), "rounds": parsed.rounds, "sizes": []}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-api-") as folder,
            Cluster.start(profile="api") as cluster,
        ):
            place.prepare(cluster, alone=True)
            for workers in chosen:
                row = _size(cluster, Path(folder), workers, parsed.rounds)
                results["sizes"].append(row)
    except (DevclusterError, TimeoutError, RuntimeError, OSError) as error:
        print(f"bench-api: {error}", file=sys.stderr)
        return 1
    print(table(results))
    if chosen == list(SIZES):
        publish("api", results, table(results))
    else:
        print(f"bench-api: only a run of {sizes} workers is published", file=sys.stderr)
    return 0


def _size(cluster: Cluster, folder: Path, workers: int, rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        where = stack.enter_context(place.place(cluster, folder))
        fakes = stack.enter_context(
            FakeFleet.of_namespace(
                cluster.kubeconfig, where.namespace, log=folder / "fakes.log", port=free_port()
            )
        )
        log = folder / "operator.log"
        operator = stack.enter_context(Operator(cluster.kubeconfig, where.namespace, log))
        operator.wait_leading()
        _say(workers, "bring-up")
        _bring_up(where, fakes, operator, workers)
        api = stack.enter_context(RlApi(cluster.kubeconfig, where.namespace, NAME, folder))
        return asyncio.run(_measure(where, api, fakes.admin_port, workers, rounds))


async def _measure(
    where: place.Place, api: RlApi, port: int, workers: int, rounds: int
) -> dict[str, Any]:
    pods = where.server.get(where.core("pods"))["items"]
    urls = [f"http://{pod['status']['podIP']}:{port}" for pod in pods]
    secret = where.server.get(f"{where.core('secrets')}/{NAME}-admin-token")
    token = base64.b64decode(secret["data"]["token"]).decode().strip()
    async with AsyncExitStack() as stack:
        contenders = {
            BY_ADDRESS: await trainers.by_address(stack, api.root, api.key),
            AIOHTTP: await trainers.with_aiohttp(stack, urls, token),
            HTTPX: await trainers.with_httpx(stack, urls, token),
        }
        for name, trainer in contenders.items():
            _say(workers, f"{name} makes its connections")
            await trainers.seconds_of(trainer)
        used = api.cpu_seconds()
        seconds: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds):
            for name, trainer in contenders.items():
                seconds[name] += await trainers.seconds_of(trainer)
            last = ", ".join(f"{name} {found[-1]:.3f} s" for name, found in seconds.items())
            _say(workers, f"round {number + 1} of {rounds}: {last}")
        calls = 2 * rounds * workers
        return {
            "workers": workers,
            "seconds": seconds,
            "api_cpu_seconds_per_call": (api.cpu_seconds() - used) / calls,
        }


def _bring_up(where: place.Place, fakes: FakeFleet, operator: Operator, workers: int) -> None:
    """Errors: TimeoutError."""
    fleet = fleet_of(workers, fakes.admin_port, management="External")
    where.server.request("POST", where.path("inferencefleets"), fleet)
    until = time.monotonic() + 60 + 0.2 * workers
    while True:
        status = where.server.get(where.path("inferencefleets", NAME)).get("status", {})
        if status.get("readyReplicas") == workers:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"{workers} workers do not come up:\n{operator.said()}")
        time.sleep(_POLL_SECONDS)


def table(results: dict[str, Any]) -> str:
    """The figures, in words and rows."""
    measured = f"Measured on {where(results['machine'])}; medians of {2 * results['rounds']} calls."
    head = (
        "| Workers | one call to the fleet's address | by hand, one aiohttp session | by hand, one "
        "httpx client per worker | address ÷ aiohttp | goal | processor time of the RL API per worker |"
    )
    lines = [measured, "", head, "| --- | --- | --- | --- | --- | --- | --- |"]
    for row in results["sizes"]:
        found = {name: statistics.median(each) for name, each in row["seconds"].items()}
        goal = GOALS.get(row["workers"])
        cells = (
            f"{row['workers']:,}",
            *(f"{found[name]:.3f} s" for name in (BY_ADDRESS, AIOHTTP, HTTPX)),
            f"{found[BY_ADDRESS] / found[AIOHTTP]:.2f}",
            f"≤ {goal}" if goal else "-",
            f"{1000 * row['api_cpu_seconds_per_call']:.2f} ms",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _say(workers: int, text: str) -> None:
    print(f"bench-api: {workers:,}: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
