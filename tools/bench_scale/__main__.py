"""`make bench-scale`: the operator from 16 to 10,000 workers, next to hand-written fan-outs.

The run has an API server with etcd, the real operator in its own process, and fake workers in another
one. Each fake worker has its own address, and a fake kubelet writes the status of its pod. The same run
measures two hand-written loops over as many fake workers.

Results go to bench/results/scale.json, and to docs/performance.md as tables and charts. A run that fails
or ends early changes neither. Nor does a run that is over 20 % slower than the mean of the last five.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench_scale import limits, measure, place, report
from bench_scale.contender import NAMES
from bench_worker.report import machine
from devcluster import Cluster, DevclusterError

SIZES = (16, 64, 256, 1000, 4000, 10_000)
EVERYTHING_AT = 1000
"""With this many workers the other strategies, and workers that are dead or slow, are measured; with
this many or more, what becomes of a rollout whose operator is killed."""


def main() -> int:
    """Read the command line and measure. Returns: 0 if nothing has failed."""
    parser = argparse.ArgumentParser(
        prog="make bench-scale",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    sizes = ",".join(map(str, SIZES))
    parser.add_argument("--sizes", default=sizes, help=f"numbers of workers ({sizes})")
    parser.add_argument("--rounds", type=int, default=5, help="rollouts of each contender (5)")
    parser.add_argument("--rest-seconds", type=float, default=35.0, help="without any change (35)")
    parser.add_argument(
        "--bring-up-seconds", type=float, default=0.0, help="most (60 and 0.2 for each worker)"
    )
    parser.add_argument("--decisions", type=int, default=3, help="repetitions of each (3)")
    parser.add_argument(
        "--everything-at",
        type=int,
        default=EVERYTHING_AT,
        help="size with all strategies, and with dead and slow workers (1000); from this size on an "
        "operator is killed in the middle of a rollout, too",
    )
    clients = ",".join(NAMES)
    parser.add_argument("--clients", default=clients, help=f"contenders by hand ({clients})")
    parser.add_argument("--keep-page", action="store_true", help="write only the raw results")
    parser.add_argument(
        "--accept", action="store_true", help="publish a run that is slower than its limits, too"
    )
    parser.add_argument(
        "--kill",
        action="store_true",
        help="only the rollouts, with the operator killed in the middle one; publishes nothing, and "
        "fails if anything is lost",
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="only the rollouts, with a flame graph of the operator in docs/images; publishes no "
        "times, which the sampler prolongs",
    )
    parser.add_argument("--page-only", action="store_true", help="only from the raw results")
    parsed = parser.parse_args()
    if parsed.page_only:
        report.write_page(report.read())
        return 0
    chosen = [int(word) for word in str(parsed.sizes).split(",") if word]
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background the first is ignored
        signal.signal(number, signal.default_int_handler)
    results: dict[str, Any] = {"machine": machine(), "sizes": []}
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-scale-") as folder,
            Cluster.start(profile="api") as cluster,
        ):
            place.prepare(cluster, alone=True)
            for workers in chosen:
                plan = _plan(parsed, workers)
                say = _sayer(workers)
                found = measure.size(cluster, workers, plan, folder=Path(folder), say=say)
                results["sizes"].append(found)
                report.write_unfinished(results)  # keeps the figures if a later size fails
    except DevclusterError as error:
        print(f"bench-scale: {error}", file=sys.stderr)
        return 1
    if parsed.kill or parsed.profile:
        return _report_problems(results, chosen)
    print(report.tables(results))
    runs = limits.read()
    slower = [] if parsed.accept else limits.beyond(results, runs)
    if missing := [*report.missing(results, chosen), *slower]:
        print(f"bench-scale: nothing is published: {'; '.join(missing)}", file=sys.stderr)
        print(f"bench-scale: what was measured is in {report.UNFINISHED}", file=sys.stderr)
        if slower:
            print(
                "bench-scale: limits are the mean of the last five runs and 20 % more; with "
                "--accept a slower run is published, too",
                file=sys.stderr,
            )
        return 1
    limits.add(results, runs)
    report.write_results(results)
    if not parsed.keep_page:
        report.write_page(results)
    return 0


def _report_problems(results: dict[str, Any], chosen: list[int]) -> int:
    """Print what a run without published figures has lost. Returns: the exit code, 0 without a loss."""
    problems = report.missing(results, chosen)
    for row in results["sizes"]:
        problems += [f"{row['workers']:,}: {loss}" for loss in row.get("kill", {}).get("lost", ())]
    for problem in problems:
        print(f"bench-scale: {problem}", file=sys.stderr)
    return int(bool(problems))


def _plan(parsed: argparse.Namespace, workers: int) -> measure.Plan:
    only_rollouts = parsed.kill or parsed.profile
    everything = workers == parsed.everything_at and not only_rollouts
    names = "" if only_rollouts else str(parsed.clients)
    return measure.Plan(
        rounds=parsed.rounds,
        rest_seconds=parsed.rest_seconds,
        bring_up_seconds=parsed.bring_up_seconds or 60 + 0.2 * workers,
        clients=[name for name in names.split(",") if name],
        strategies=everything,
        faults=everything,
        takeover=workers >= parsed.everything_at and not only_rollouts,
        kill=parsed.kill,
        profile=parsed.profile,
        decisions=0 if only_rollouts else parsed.decisions,
    )


def _sayer(workers: int) -> measure.Say:
    began = time.monotonic()

    def say(what: str) -> None:
        print(f"bench-scale: {workers:,}: {time.monotonic() - began:6.1f} s  {what}", flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
