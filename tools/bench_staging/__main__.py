"""`python -m bench_staging`: see `make bench-staging`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_worker.report import REPOSITORY, RESULTS, machine, publish, where
from bench_worker.servers import interpreter
from fleet_worker.errors import counted

GOAL = 0.9
GOAL_RATE, GOAL_BESIDE, GOAL_LOOP = 1.5, 1.3, 0.97


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_staging", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="of each checkpoint")
    parser.add_argument("--rounds", type=int, default=5, help="of each way, in turn")
    parser.add_argument(
        "--before",
        type=Path,
        help="a checkout that stages in threads; by default the last figures of one are kept",
    )
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="bench-staging-") as folder:
        results |= _measured(folder, arguments.bytes, arguments.rounds)
        results |= _beside(f"{folder}/1", arguments.rounds, arguments.before)
    for row in results["rows"]:
        pairs = zip(row["before_seconds"], row["now_seconds"], strict=True)
        # Pairs of neighbouring rounds: a disturbance of the machine affects both.
        row["throughput_ratio"] = statistics.median(before / now for before, now in pairs)
    table = _table(results)
    publish("staging", results, table)
    sys.stdout.write(table)
    return 0


def _measured(folder: str, size: int, rounds: int) -> dict[str, Any]:
    return _printed_by("measure.py", folder, f"--bytes={size}", f"--rounds={rounds}")


def _beside(path: str, rounds: int, before: Path | None) -> dict[str, Any]:
    """Steps of one core, and stages next to an event loop: in a stager, and as before in threads."""
    (file,) = Path(path).glob("*.safetensors")
    found = {
        "steps": _printed_by("steps.py", str(file)),
        "in_a_stager": _printed_by("beside.py", path, f"--rounds={rounds}"),
    }
    if before is not None:
        found["in_threads"] = _printed_by(
            "beside.py", path, f"--rounds={rounds}", "--in-threads", checkout=before
        )
    elif "in_threads" in (last := json.loads((RESULTS / "staging.json").read_text())):
        found["in_threads"] = last["in_threads"]
    return found


def _printed_by(script: str, *arguments: str, checkout: Path = REPOSITORY) -> dict[str, Any]:
    """Run one of our scripts in the worker's environment, over the worker of a checkout."""
    command = [interpreter(), str(Path(__file__).with_name(script))]
    environment = os.environ | {"PYTHONPATH": f"{checkout}/client:{checkout}/worker"}
    done = subprocess.run(
        [*command, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    return dict(json.loads(done.stdout))


def _table(results: dict[str, Any]) -> str:
    size = results["bytes"]
    rounds = len(results["rows"][0]["now_seconds"])
    lines = [
        f"Measured on {where(results['machine'])}; {size / 2**30:g} GiB, cached; medians of {rounds} rounds.",
        "",
        "| Staging | two passes, no digest | one pass, with digest | now / before | goal |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        files = counted(row["files"], "file")
        kept = "held in memory" if row["held"] else "beyond the budget"
        rates = [
            f"{size / statistics.median(row[name]) / 1e9:.2f} GB/s"
            for name in ("before_seconds", "now_seconds")
        ]
        ratio = f"{row['throughput_ratio']:.2f}"
        lines.append(f"| {files}, {kept} | {' | '.join(rates)} | {ratio} | ≥ {GOAL} |")
    lines += ["", *_beside_table(results), "", *_steps_table(results["steps"])]
    return "\n".join(lines) + "\n"


def _beside_table(results: dict[str, Any]) -> list[str]:
    ways = [results.get("in_threads"), results["in_a_stager"]]
    streams = results["in_a_stager"]["streams"]
    rows: list[tuple[str, str, Callable[[dict[str, Any]], str]]] = [
        ("with an idle event loop", f"≥ {GOAL_RATE} GB/s", lambda way: _rate(way, "idle")),
        (f"with {streams} fake streams", "", lambda way: _rate(way, "busy")),
        ("seconds with streams / idle", f"≤ {GOAL_BESIDE}", _slower),
        ("speed of the streams meanwhile / alone", f"≥ {GOAL_LOOP}", _loop_speed),
    ]
    lines = [
        "| One file, a whole stage | in threads of the server, before | in a stager | goal |",
        "| --- | --- | --- | --- |",
    ]
    for name, goal, shown in rows:
        cells = ["" if way is None else shown(way) for way in ways]
        lines.append(f"| {name} | {' | '.join(cells)} | {goal} |")
    return lines


def _rate(way: dict[str, Any], loop: str) -> str:
    row = way[loop]
    if not row["is_over"]:
        return f"not done after {row['seconds']:.0f} s"
    return f"{way['bytes'] / row['seconds'] / 1e9:.2f} GB/s"


def _slower(way: dict[str, Any]) -> str:
    ratio = way["busy"]["seconds"] / way["idle"]["seconds"]
    return f"{ratio:.2f}" if way["busy"]["is_over"] else f"> {ratio:.0f}"


def _loop_speed(way: dict[str, Any]) -> str:
    return f"{way['busy']['loop_speed']:.2f}"


def _steps_table(steps: dict[str, float]) -> list[str]:
    names = {
        "read": "read from the page cache",
        "finite": "look for infinities and zeros (bfloat16)",
        "digest": "SHA-256",
        "write": "write to sealed memory, with its pages",
    }
    rows = [f"| {text} | {steps[name] / 1e9:.1f} GB/s |" for name, text in names.items()]
    return ["| Step | one core |", "| --- | --- |", *rows]


if __name__ == "__main__":
    sys.exit(main())
