"""Limits of the figures on a machine with earlier runs: the mean of its last five runs, plus a fifth.

A run beyond a limit is not published, so that a regression does not become the next run's standard.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from typing import Any

from bench_scale import goals
from bench_worker.report import REPOSITORY

RUNS = REPOSITORY / "bench" / "results" / "scale-runs.json"
"""The figures of the runs that were published, latest last."""
COUNTED = 5
MARGIN = 1.2

Row = dict[str, Any]


def figures_of(row: Row) -> dict[str, float]:
    """Name → value of each figure of a size that has a limit, as far as the run came."""
    found: dict[str, float] = {}
    for figure in goals.FIGURES:
        if not figure.has_limit:
            continue
        value = figure.value(row)
        if value is not None:
            found[figure.name] = value
    return found


def read() -> list[Row]:
    """The runs that were published; none if there was no run yet."""
    if not RUNS.exists():
        return []
    found: list[Row] = json.loads(RUNS.read_text())
    return found


def add(results: Row, runs: Sequence[Row]) -> None:
    """Add the figures of a run to the published ones, and keep the last ones of each machine."""
    made = {
        "machine": _machine(results),
        "sizes": {str(row["workers"]): figures_of(row) for row in results["sizes"]},
    }
    ours = [run for run in runs if run["machine"] == made["machine"]]
    others = [run for run in runs if run["machine"] != made["machine"]]
    kept = [*others, *ours[1 - COUNTED :], made]
    RUNS.parent.mkdir(parents=True, exist_ok=True)
    RUNS.write_text(json.dumps(kept, indent=1) + "\n")


def beyond(results: Row, runs: Sequence[Row]) -> list[str]:
    """The figures that are beyond their limit, in words. A figure without five runs has no limit."""
    machine = _machine(results)
    before = [run["sizes"] for run in runs if run["machine"] == machine]
    found = []
    for row in results["sizes"]:
        former = [sizes.get(str(row["workers"]), {}) for sizes in before]
        for name, value in figures_of(row).items():
            values = [figures[name] for figures in former if name in figures]
            if len(values) < COUNTED:
                continue
            limit = MARGIN * statistics.fmean(values[-COUNTED:])
            if value > limit:
                found.append(f"{name} with {row['workers']:,} workers: {value:.3g} > {limit:.3g}")
    return found


def _machine(results: Row) -> Row:
    return {name: results["machine"][name] for name in ("cpu", "cores", "memory_gib")}
