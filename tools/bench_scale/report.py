"""The figures as JSON, and in docs/performance.md as tables between two marks and as charts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench_scale import charts, goals
from bench_scale.contender import NAMES
from bench_worker.report import PAGE, REPOSITORY, fill, where

RESULTS = REPOSITORY / "bench" / "results" / "scale.json"
UNFINISHED = REPOSITORY / "build" / "bench-scale-unfinished.json"
"""The measurements of a run. They are published when they are complete."""
CHARTS = REPOSITORY / "docs" / "images"
PARTS = {
    "to_stage": "patch to first call",
    "stage": "stage",
    "to_pause": "to pause",
    "pause": "pause",
    "to_load": "to load",
    "load": "load",
    "to_resume": "to resume",
    "resume": "resume",
}
_OPERATOR = "the operator"

Row = dict[str, Any]


def write_unfinished(results: Row) -> None:
    """Save the measurements so far, next to the published ones."""
    _write(results, UNFINISHED)


def write_results(results: Row) -> None:
    """Publish the raw results."""
    _write(results, RESULTS)


def missing(results: Row, sizes: Sequence[int]) -> list[str]:
    """Why the results of a run over these sizes are not published; empty if they may be."""
    rows = {row["workers"]: row for row in results["sizes"]}
    found = [f"{size:,} workers were not measured" for size in sizes if size not in rows]
    failed = (row for row in rows.values() if "failed" in row)
    return found + [_failure(row) for row in failed]


def _failure(row: Row, begins: str = "with") -> str:
    first = row["failed"].partition("\n")[0]
    return f"{begins} {row['workers']:,} workers the run failed: `{first}`"


def _write(results: Row, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def read() -> Row:
    """The raw results as they were written last."""
    found: Row = json.loads(RESULTS.read_text())
    return found


def write_page(results: Row) -> None:
    """Write tables and charts into the documentation."""
    CHARTS.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures(results).items():
        (CHARTS / name).write_text(picture)
    fill(PAGE, "bench-scale", tables(results))


def pictures(results: Row) -> dict[str, str]:
    """File name → chart; none without a rollout."""
    rows = [row for row in results["sizes"] if row.get("rollouts")]
    if not rows:
        return {}
    lines = {_OPERATOR: [(row["workers"], seconds(row)) for row in rows]}
    for client, name in NAMES.items():
        by_hand = [r for r in rows if r["contenders"].get(client)]
        lines[name] = [(r["workers"], seconds_by_hand(r, client)) for r in by_hand]
    bars = {}
    for row in rows:
        phases = [r["phases"] for r in row["rollouts"] if r["phases"]]
        if phases:
            shares = {PARTS[p]: statistics.median(r[p] for r in phases) for p in PARTS}
            bars[f"{row['workers']:,}"] = shares
    made = {"scale-time.svg": charts.time_against_size(lines, "Patch to last worker resumed")}
    if bars:
        made["scale-phases.svg"] = charts.where_time_goes(bars, "Where the time of a rollout goes")
    return made


def seconds(row: Row) -> float:
    """The median seconds of a rollout."""
    return float(statistics.median(r["seconds"] for r in row["rollouts"]))


def seconds_by_hand(row: Row, client: str) -> float:
    """The median seconds of a rollout by hand."""
    return float(statistics.median(r["seconds"] for r in row["contenders"][client]))


def tables(results: Row) -> str:
    """All tables."""
    rows = results["sizes"]
    count = max((len(row.get("rollouts", ())) for row in rows), default=0)
    lines = [f"Measured on {where(results['machine'])}; medians of {count} rollouts.", ""]
    if pictures(results):
        lines += [
            "![Patch to last worker resumed, against the number of workers](images/scale-time.svg)",
            "",
            "![Where the time of a rollout goes](images/scale-phases.svg)",
            "",
        ]
    lines += _main(rows) + _missed(rows) + _processes(rows) + _decisions(rows)
    for row in rows:
        lines += _strategies(row) + _faults(row)
        if "failed" in row:
            lines += [f"{_failure(row, 'With')}.", ""]
    return "\n".join(lines)


def _main(rows: Sequence[Row]) -> list[str]:
    sizes = [row["workers"] for row in rows]
    lines = _head("Figure", *(f"{size:,} workers" for size in sizes))
    for figure in goals.FIGURES:
        cells = []
        for row in rows:
            shown = _shown(figure, row)
            goal = figure.goals.get(row["workers"])
            reached = f"{shown} (≤ {figure.unit(goal)})" if goal is not None and shown else shown
            cells.append(reached or "-")
        lines.append(_cells(figure.name, *cells))
    return [*lines, ""]


def _missed(rows: Sequence[Row]) -> list[str]:
    """Which goals this run has missed: a reader must not have to compare numbers."""
    missed: list[str] = []
    judged = 0
    for figure in goals.FIGURES:
        with_goals = [row for row in rows if row["workers"] in figure.goals]
        known = {row["workers"]: figure.value(row) for row in with_goals}
        reached = {workers: value for workers, value in known.items() if value is not None}
        sizes = [f"{n:,}" for n, value in reached.items() if value > figure.goals[n]]
        judged += len(reached)
        if sizes:
            missed.append(f"{figure.name} ({', '.join(sizes)})")
    if not missed:
        return ["This run reaches every goal of its sizes.", ""] if judged else []
    named = "; ".join(missed)
    return [f"Goals that this run misses, with the numbers of workers: {named}.", ""]


def _shown(figure: goals.Figure, row: Row) -> str:
    value = figure.value(row)
    return figure.unit(value) if value is not None else ""


def _processes(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if row.get("rollout_process_seconds")]
    if not measured:
        return []
    names = list(measured[0]["rollout_process_seconds"])
    lines = _head("Processor seconds of the rollouts above", *names, "fan-out with aiohttp")
    for row in measured:
        used = row["rollout_process_seconds"]
        by_hand = sum(r["cpu_seconds"] for r in row["contenders"].get("aiohttp", ()))
        cells = [f"{used[name]:.2f}" for name in names] + [f"{by_hand:.2f}"]
        lines.append(_cells(f"{row['workers']:,} workers, {len(row['rollouts'])} rollouts", *cells))
    return [*lines, ""]


def _decisions(rows: Sequence[Row]) -> list[str]:
    measured = [row for row in rows if row.get("decide")]
    lines = _head(
        "One decision, processor time", *(f"{row['workers']:,} workers" for row in measured)
    )
    steps = max((len(row["decide"]) for row in measured), default=0)
    for number in range(steps):
        each = [row["decide"][number] if number < len(row["decide"]) else None for row in measured]
        named = next(row for row in each if row is not None)
        calls = "with calls" if named["calls"] else "without calls"
        cells = [f"{1000 * min(r['cpu_seconds']):.1f} ms" if r is not None else "-" for r in each]
        lines.append(_cells(f"{number + 1}. {named['phase']}, {calls}", *cells))
    return [*lines, ""] if measured else []


def _strategies(row: Row) -> list[str]:
    found = row.get("strategies")
    if not found:
        return []
    lines = _head(f"{row['workers']:,} workers by strategy", "p50", "all rollouts", "most writes")
    for strategy, rollouts in found.items():
        each = [r["seconds"] for r in rollouts]
        most = str(max(r["writes"] for r in rollouts))
        all_of_them = ", ".join(f"{s:.2f}" for s in each)
        lines.append(_cells(strategy, f"{statistics.median(each):.2f} s", all_of_them, most))
    return [*lines, ""]


def _faults(row: Row) -> list[str]:
    found = row.get("faults")
    if not found or not found["rollouts"]:
        return []
    shares = f"{found['dead_percent']} % dead, {found['slow_percent']} % slow"
    head = f"{row['workers']:,} workers, {shares} ({found['slow_ms']} ms for each call)"
    lines = _head(head, "p50", "all rollouts")
    each = {_OPERATOR: found["rollouts"]}
    each |= {NAMES[client]: rows for client, rows in found["contenders"].items()}
    for name, rollouts in each.items():
        took = [r["seconds"] for r in rollouts]
        all_of_them = ", ".join(f"{s:.2f}" for s in took)
        lines.append(_cells(name, f"{statistics.median(took):.2f} s", all_of_them))
    return [*lines, ""]


def _head(*heads: str) -> list[str]:
    return [_cells(*heads), _cells(*("---" for _ in heads))]


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"
