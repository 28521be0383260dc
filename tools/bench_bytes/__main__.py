"""`python -m bench_bytes`: what a version costs the store and a worker, in full, as a delta, and as users do today.

See `make bench-bytes`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import envs
from bench_bytes.write import write
from bench_scale.charts import where_time_goes
from bench_worker.report import PAGE, REPOSITORY, RESULTS, machine, publish
from bench_worker.store import limited

PARTS = ("stores", "loads", "today")
GOAL_BYTES, GOAL_SECONDS, GOAL_PAUSE = 0.03, 0.2, 0.25
_STORE_BYTES_PER_SECOND = 100_000_000
_CHART = PAGE.parent / "images" / "bytes-today.svg"
_TODAY = {
    "reload": "reload from the store",
    "copy": "copy, then reload",
    "apply": "slime's: apply, then reload",
    "full": "rlfleet, full",
    "delta": "rlfleet, delta",
    "in place": "rlfleet, delta in place",
}
_WAYS_OF_TODAY = (
    "`reload` is vLLM's own `reload_weights`: it reads all bytes in the pause, and checks no digest. The copy is `cp` to"
    " a directory of the worker. `rsync` would send as much: where 1 % of the elements differ, no block of a large file is"
    " the same. To apply a delta as slime's receivers do is to change such a local copy tensor by tensor, with the checksum"
    " of each. The local copy is in the page cache, as on a fast disk. All ways leave the same weights in the engine,"
    " or the command fails. Requests wait in the pause only."
)
_TITLE = (
    f"One version into one engine, behind a store of {_STORE_BYTES_PER_SECOND // 1_000_000} MB/s"
)


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_bytes", description=__doc__)
    parser.add_argument("--changed-share", type=float, default=0.01, help="of the elements, 0 to 1")
    parser.add_argument("--rounds", type=int, default=3, help="of each way, in turn")
    parser.add_argument("--layers", type=int, default=28, help="of the model")
    parser.add_argument(
        "--folder", type=Path, help="on the disk to read from; by default a new one"
    )
    parser.add_argument(
        "--parts",
        default=",".join(PARTS),
        help="the others keep their published figures; default: %(default)s",
    )
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    results: dict[str, Any] = json.loads((RESULTS / "bytes.json").read_text())
    with tempfile.TemporaryDirectory(prefix="bench-bytes-", dir=arguments.folder) as made:
        folder = Path(made)
        sizes = write(folder, changed_share=arguments.changed_share, layers=arguments.layers)
        if "stores" in parts:
            results |= {
                "machine": machine(),
                "changed_share": arguments.changed_share,
                "bytes": sizes,
                "stores": {
                    "limited": _measured(folder, arguments.rounds, cached=False),
                    "cached": _measured(folder, arguments.rounds, cached=True),
                },
            }
        if "loads" in parts:
            results["loads"] = {
                "machine": machine(),
                "changed_share": arguments.changed_share,
                "bytes": sizes["full"],
                "plain": _loaded(folder, arguments.rounds),
                "packed": _loaded(folder, arguments.rounds, "--packed"),
            }
        if "today" in parts:
            results["today"] = {
                "machine": machine(),
                "changed_share": arguments.changed_share,
                "bytes": sizes["full"],
                "ways": _limited(folder, _command("today.py", folder, arguments.rounds)),
            }
    table = _table(results)
    publish("bytes", results, table)
    if "today" in results:
        _CHART.write_text(_chart(results["today"]))
    sys.stdout.write(table)
    return 0


def _measured(folder: Path, rounds: int, *, cached: bool) -> dict[str, Any]:
    """Stage both ways, behind a limited store unless it is cached."""
    command = _command("measure.py", folder, rounds)
    return _printed_by([*command, "--cached"]) if cached else _limited(folder, command)


def _loaded(folder: Path, rounds: int, *options: str) -> dict[str, Any]:
    """Load both ways into an engine on CPUs, with one thread."""
    return _printed_by([*_command("swap.py", folder, rounds), *options])


def _command(script: str, folder: Path, rounds: int) -> list[str]:
    """A measurement in the worker's environment."""
    path = str(Path(__file__).with_name(script))
    return [str(envs.interpreter_of("worker")), path, str(folder), f"--rounds={rounds}"]


def _limited(folder: Path, command: list[str]) -> dict[str, Any]:
    """Run a measurement, which inherits the limit of this process."""
    with limited(os.getpid(), folder, _STORE_BYTES_PER_SECOND) as is_limited:
        if not is_limited:
            raise SystemExit("the kernel does not limit reads here (cgroup blkio)")
        return _printed_by(command)


def _printed_by(command: list[str]) -> dict[str, Any]:
    places = [REPOSITORY / each for each in ("client", "worker", "tools", "tools/bench_bytes")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, places)),
        "OMP_NUM_THREADS": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_PLUGINS": "",
    }
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))  # vLLM writes to it, too


def _table(results: dict[str, Any]) -> str:
    m, size = results["machine"], results["bytes"]["full"]
    where = f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB"
    load = f"load average {m['load_average_at_start']} at the start"
    rounds = len(results["stores"]["limited"]["full"]["seconds"])
    share = f"{100 * results['changed_share']:g} % of the elements changed"
    lines = [
        f"Measured on {where}, {load}; {size / 1e9:.2f} GB in one file, {share}; medians of {rounds} rounds.",
        "",
        "| One worker, one version | in full | as a delta | delta / full | goal |",
        "| --- | --- | --- | --- | --- |",
    ]
    read = [results["stores"]["limited"][name]["read_bytes"] for name in ("full", "delta")]
    shown = [f"{each / 1e6:,.1f} MB" for each in read]
    ratio = f"{100 * read[1] / read[0]:.1f} %"
    goal = f"≤ {100 * GOAL_BYTES:g} %"
    lines.append(f"| bytes read from the store | {' | '.join(shown)} | {ratio} | {goal} |")
    named = {
        "limited": (f"staging from a store of {_STORE_BYTES_PER_SECOND / 1e6:.0f} MB/s", True),
        "cached": ("staging from the page cache", False),
    }
    for store, (name, has_goal) in named.items():
        ways = [
            statistics.median(results["stores"][store][w]["seconds"]) for w in ("full", "delta")
        ]
        shown = [f"{seconds:.2f} s" for seconds in ways]
        goal = f"≤ {GOAL_SECONDS:g}" if has_goal else ""
        lines.append(f"| {name} | {' | '.join(shown)} | {ways[1] / ways[0]:.2f} | {goal} |")
    lines += ["", *_loads(results["loads"])]
    if "today" in results:
        lines += ["", *_today(results["today"])]
    return "\n".join(lines) + "\n"


def _loads(loads: dict[str, Any]) -> list[str]:
    plain, packed = (
        {way: statistics.median(each) for way, each in loads[kernels].items() if each}
        for kernels in ("plain", "packed")
    )
    ratio = f"{plain['in place'] / plain['full']:.2f} | ≤ {GOAL_PAUSE:g}"
    load = loads["machine"]["load_average_at_start"]
    size, share = loads["bytes"] / 1e9, 100 * loads["changed_share"]
    about = (
        f"Measured with a load average of {load} at the start; {size:.2f} GB, {share:g} % of the elements changed;"
        f" medians of {len(loads['plain']['full'])} rounds."
    )
    return [
        about,
        "",
        "| Processor time of the call that loads, in vLLM's worker on CPUs | in full | in place | in place / full | goal |",
        "| --- | --- | --- | --- | --- |",
        f"| weights as files have them, as on GPUs | {plain['full']:.2f} s | {plain['in place']:.2f} s | {ratio} |",
        f"| before the pause: the comparison of both versions, and a sample of the model | | {plain['comparison']:.2f} s | | |",
        f"| weights that vLLM packs for CPUs | {packed['full']:.2f} s | in full | | |",
    ]


def _today(today: dict[str, Any]) -> list[str]:
    found, load = _medians(today), today["machine"]["load_average_at_start"]
    size, share = today["bytes"] / 1e9, 100 * today["changed_share"]
    rounds = len(today["ways"]["reload"]["pause"])
    ours = sum(found["delta"])
    lines = [
        (
            f"Measured with a load average of {load} at the start; {size:.2f} GB, {share:g} % of the elements changed;"
            f" medians of {rounds} rounds."
        ),
        "",
        f"![{_TITLE}](images/{_CHART.name})",
        "",
        f"| {_TITLE} | read from the store | before the pause | in the pause | together | ÷ {_TODAY['delta']} |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for way, (before, pause) in found.items():
        read = f"{today['ways'][way]['read_bytes'] / 1e6:,.1f} MB"
        both = before + pause
        seconds = f"{before:.2f} s | {pause:.2f} s | {both:.2f} s | {both / ours:.1f}"
        lines.append(f"| {_TODAY[way]} | {read} | {seconds} |")
    return [*lines, "", _WAYS_OF_TODAY]


def _chart(today: dict[str, Any]) -> str:
    bars = {
        _TODAY[way]: {"before the pause": before, "in the pause": pause}
        for way, (before, pause) in _medians(today).items()
    }
    return where_time_goes(bars, _TITLE, names=190, is_to_scale=True)


def _medians(today: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Way → seconds before the pause, and in it."""
    ways = today["ways"]
    return {
        way: (statistics.median(ways[way]["before"]), statistics.median(ways[way]["pause"]))
        for way in _TODAY
    }


if __name__ == "__main__":
    sys.exit(main())
