"""The costs of the attacks as a part of docs/reliability.md, between two marks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench_worker.report import fill, where
from isolation.rows import ROWS

GOAL = 2.0
_HEAD = """## Isolation

What one tenant can do to another one, measured with the real API server, the chart's accounts, and fake workers.
`make isolation` plays every attack below and writes this part. [Isolation](reference/security.md#isolation) has
the limits. *Alone* and *attacked* are medians of the other tenant's rollouts of three workers, or of its read and
publication at the RL API. The goal is at most twice as long. *Server* is the same ratio without an operator: of as
many writes as a rollout has, sent to the API server alone, while the attack is played again. *Ended* counts
processes, *lapsed* leases of paused workers. Memory is the peak, and in brackets the limit of the chart. *Before*
was measured without these limits. Other work on the machine makes all times longer.
"""


def table(results: Mapping[str, Any]) -> str:
    """The figures, in words and rows."""
    measured = {each["attack"]: each for each in results["attacks"]}
    lines = [
        _HEAD,
        "| Attack | Before | alone | attacked | ratio | server | lapsed | ended | operator | RL API | What holds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in ROWS:
        if row.attack in measured:
            cells = (row.attack, row.before, *_cells(measured[row.attack], results), row.limit)
            lines.append(f"| {' | '.join(cells)} |")
    lines += _causes(measured)
    lines += ["", *_runs(measured)]
    return "\n".join(lines) + "\n"


def _runs(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """When and where the rows were measured: one line for each run."""
    runs: dict[str, list[str]] = {}
    for row in ROWS:
        if found := measured.get(row.attack):
            run = f"{found['date']} on {where(found['machine'])}"
            runs.setdefault(run, []).append(row.attack)
    if len(runs) == 1:
        return [f"Measured {run}." for run in runs]
    return [f"* Measured {run}: {', '.join(attacks)}." for run, attacks in runs.items()]


def _causes(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The rows that miss the goal, with their causes."""
    missed: dict[str, list[str]] = {}
    for row in ROWS:
        found = measured.get(row.attack)
        if found and (_ratio(found, "alone", "attacked") or 0) > GOAL:
            missed.setdefault(row.cause or "Not known.", []).append(row.attack + _busy(found))
    if not missed:
        return []
    causes = (f"* {', '.join(attacks)}: {cause}" for cause, attacks in missed.items())
    return ["", "These miss the goal. In brackets the cores that each process used:", "", *causes]


def _busy(found: Mapping[str, Any]) -> str:
    cores = (f"{process} {used:.2f}" for process, used in found.get("busy", {}).items())
    return f" ({', '.join(cores)})" if found.get("busy") else ""


def _ratio(found: Mapping[str, Any], *parts: str) -> float | None:
    """The second part by the first one; None without both."""
    medians = [float(statistics.median(found[each])) for each in parts if found.get(each)]
    return medians[1] / medians[0] if len(medians) == len(parts) else None


def _cells(found: Mapping[str, Any], results: Mapping[str, Any]) -> tuple[str, ...]:
    alone, attacked = found["alone"], found["attacked"]
    times = ("", "", "", "")
    if (ratio := _ratio(found, "alone", "attacked")) is not None:
        server = _ratio(found, "server_alone", "server_attacked")
        one, other = statistics.median(alone), statistics.median(attacked)
        times = (
            f"{one:.2f} s",
            f"{other:.2f} s",
            f"{ratio:.1f}",
            f"{server:.1f}" if server else "",
        )
    limits = results["limits_mib"]
    memory = (
        "" if found[key] is None else f"{found[key]:.0f} MiB ({limits[key]})"
        for key in ("operator_mib", "rl_api_mib")
    )
    return (*times, str(found["lapsed"]), str(len(found["ends"])), *memory)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Write the part of the page."""
    fill(page, "isolation", table(results))
