"""`make bench-router`: rollouts of several turns by a plain Service, and by routers that know sessions.

Three real workers with a small model on this machine's processor, and the real `vllm-router`. A plain
Service is played by its rule: each new connection goes to any worker. Results go to
bench/results/router.json and docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import envs
from bench_router.rollouts import (
    FIRST_TOKENS,
    REPLY_TOKENS,
    TURN_TOKENS,
    Place,
    play,
    seconds_in_turn,
)
from bench_router.routers import router
from bench_worker import servers, swaps
from bench_worker.report import REPOSITORY, machine, publish, where
from fleet_operator.api.router import RouterPolicy

SERVICE = "plain Service"
POLICIES: tuple[RouterPolicy, ...] = ("ConsistentHash", "StickyLeastLoaded")
SHAPE = {"hidden": 512, "layers": 6}
"""Large enough that a prompt costs more than a request."""
CACHE_BYTES = 512 * 1024 * 1024


def main() -> int:
    """Measure, write the figures, print the table. Returns: the exit code."""
    parser = argparse.ArgumentParser(prog="make bench-router", description=__doc__)
    parser.add_argument("--workers", type=int, default=3, help="real engines (3)")
    parser.add_argument("--sessions", type=int, default=200, help="of each way (200)")
    parser.add_argument("--turns", type=int, default=8, help="of each session (8)")
    parser.add_argument("--at-once", type=int, default=12, help="sessions at once (12)")
    parser.add_argument("--requests", type=int, default=200, help="for the overhead (200)")
    parser.add_argument("--keep-page", action="store_true", help="write nothing")
    parsed = parser.parse_args()
    results: dict[str, Any] = {"machine": machine(), **vars(parsed)}
    try:
        with tempfile.TemporaryDirectory(prefix="bench-router-") as folder:
            results |= _measured(Path(folder), parsed)
    except (servers.ServerEndedError, TimeoutError, RuntimeError) as error:
        print(f"bench-router: {error}", file=sys.stderr)
        return 1
    print(table(results))
    if not parsed.keep_page:
        publish("router", results, table(results))
    return 0


def _measured(folder: Path, parsed: argparse.Namespace) -> dict[str, Any]:
    model = folder / "model"
    script = REPOSITORY / "tools" / "checkpoints.py"
    flags = [f"--{key}={value}" for key, value in SHAPE.items()]
    python = str(envs.interpreter_of("worker"))
    command = [python, str(script), str(model), "--seed=1", *flags]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    with ExitStack() as stack:
        urls = []
        for number in range(parsed.workers):
            _say(f"worker {number + 1} of {parsed.workers} starts")
            place = folder / f"worker-{number}"
            place.mkdir()
            server = stack.enter_context(
                servers.worker(place, model, [folder], threads=1, cache_bytes=CACHE_BYTES)
            )
            swaps.admit(server)
            urls.append(server.public)
        routers = {p: stack.enter_context(router(p, urls, folder)) for p in POLICIES}
        return asyncio.run(_play(parsed, urls, routers))


async def _play(
    parsed: argparse.Namespace, urls: list[str], routers: dict[RouterPolicy, str]
) -> dict[str, Any]:
    dice = random.Random(1)  # noqa: S311 - not for secrets
    places: dict[str, Place] = {SERVICE: partial(dice.choice, urls)}
    places |= {policy: partial(str, url) for policy, url in routers.items()}
    found = {}
    for name, place in places.items():
        _say(f"{name}: {parsed.sessions} sessions of {parsed.turns} turns")
        done = await play(
            place,
            urls,
            sessions=parsed.sessions,
            turns=parsed.turns,
            at_once=parsed.at_once,
        )
        found[name] = asdict(done)
    _say(f"{parsed.requests} requests to one worker, and by a router")
    one, by_router = urls[0], routers["StickyLeastLoaded"]
    direct, routed = await seconds_in_turn([one, by_router], parsed.requests)
    return {"rollouts": found, "direct_seconds": direct, "routed_seconds": routed}


def table(results: dict[str, Any]) -> str:
    """The figures, in words and rows."""
    measured = (
        f"Measured on {where(results['machine'])}; {results['workers']} workers, "
        f"{results['sessions']} sessions of {results['turns']} turns, {results['at_once']} at once. A "
        f"first prompt has {FIRST_TOKENS} tokens, and each turn adds {REPLY_TOKENS + TURN_TOKENS}."
    )
    head = "| By | prompt tokens found in a cache | turn, p50 | turn, p90 | session, p50 | session, p90 |"
    lines = [measured, "", head, "| --- | --- | --- | --- | --- | --- |"]
    for name, found in results["rollouts"].items():
        cells = [
            f"{seconds:.2f} s" for kind in ("turns", "sessions") for seconds in _spread(found[kind])
        ]
        lines.append(f"| {name} | {found['hit_rate']:.0%} | {' | '.join(cells)} |")
    direct, routed = (
        1000 * statistics.median(results[f"{k}_seconds"]) for k in ("direct", "routed")
    )
    overhead = (
        f"A request for one token over an open connection took {direct:.1f} ms at a worker and "
        f"{routed:.1f} ms by the router (medians of {len(results['direct_seconds'])})."
    )
    lines += ["", overhead]
    return "\n".join(lines) + "\n"


def _spread(seconds: list[float]) -> tuple[float, float]:
    """The median and the 90th percentile."""
    return statistics.median(seconds), statistics.quantiles(seconds, n=10)[-1]


def _say(text: str) -> None:
    print(f"bench-router: {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
