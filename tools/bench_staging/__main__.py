"""`python -m bench_staging`: see `make bench-staging`."""

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
from bench_worker.report import PAGE, REPOSITORY, machine
from fleet_worker.errors import counted

RESULTS = REPOSITORY / "bench" / "results" / "staging.json"
BEGIN, END = "<!-- bench-staging: begin -->", "<!-- bench-staging: end -->"
GOAL = 0.9


def main() -> int:
    """Measure, write the figures, print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench_staging", description=__doc__)
    parser.add_argument("--bytes", type=int, default=2 << 30, help="of each checkpoint")
    parser.add_argument("--rounds", type=int, default=5, help="of each way, in turn")
    arguments = parser.parse_args()
    results: dict[str, Any] = {"machine": machine()}
    with tempfile.TemporaryDirectory(prefix="bench-staging-") as folder:
        results |= _measured(folder, arguments.bytes, arguments.rounds)
    for row in results["rows"]:
        pairs = zip(row["before_seconds"], row["now_seconds"], strict=True)
        # Pairs of neighbouring rounds: a disturbance of the machine affects both.
        row["throughput_ratio"] = statistics.median(before / now for before, now in pairs)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=2) + "\n")
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n{_table(results)}{END}{after}")
    sys.stdout.write(_table(results))
    return 0


def _measured(folder: str, size: int, rounds: int) -> dict[str, Any]:
    script = Path(__file__).with_name("measure.py")
    command = [str(envs.interpreter_of("worker")), str(script), folder]
    command += [f"--bytes={size}", f"--rounds={rounds}"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY / "worker")}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return dict(json.loads(done.stdout))


def _table(results: dict[str, Any]) -> str:
    m, size = results["machine"], results["bytes"]
    where = f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB"
    load = f"load average {m['load_average_at_start']} at the start"
    rounds = len(results["rows"][0]["now_seconds"])
    lines = [
        f"Measured on {where}, {load}; {size / 2**30:g} GiB, cached; medians of {rounds} rounds.",
        "",
        "| Staging | two passes, no digest | one pass, with digest | now / before | goal |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in results["rows"]:
        files = counted(row["files"], "file")
        where = "held in memory" if row["held"] else "beyond the budget"
        rates = [
            f"{size / statistics.median(row[name]) / 1e9:.2f} GB/s"
            for name in ("before_seconds", "now_seconds")
        ]
        ratio = f"{row['throughput_ratio']:.2f}"
        lines.append(f"| {files}, {where} | {' | '.join(rates)} | {ratio} | ≥ {GOAL} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
