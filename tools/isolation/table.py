"""The costs of the attacks as a part of docs/reliability.md, between two marks."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isolation.rows import ROWS

BEGIN, END = "<!-- isolation: begin -->", "<!-- isolation: end -->"
GOAL = 2.0
_HEAD = """## Isolation

What one tenant can do to another one, measured with the real API server, the chart's accounts, and fake workers.
`make isolation` plays every attack below and writes this part. [Isolation](reference/security.md#isolation) has
the limits. *Alone* and *attacked* are medians of the other tenant's rollouts of three workers, or of its read and
publication at the RL API. The goal is at most twice as long. *Ended* counts processes, *lapsed* leases of paused
workers. Memory is the peak, and in brackets the limit of the chart. *Before* was measured without these limits.
Other work on the machine makes all times longer.
"""


def table(results: Mapping[str, Any]) -> str:
    """The figures, in words and rows."""
    m, measured = results["machine"], {each["attack"]: each for each in results["attacks"]}
    lines = [
        _HEAD,
        "| Attack | Before | alone | attacked | ratio | lapsed | ended | operator | RL API | What holds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in ROWS:
        if row.attack in measured:
            cells = (row.attack, row.before, *_cells(measured[row.attack], results), row.limit)
            lines.append(f"| {' | '.join(cells)} |")
    lines += _causes(measured)
    where = f"{m['cores']} cores of {m['cpu']}, {m['memory_gib']} GiB"
    load = f"load average {m['load_average_at_start']} at the start"
    lines += ["", f"Measured {results['date']} on {where}, {load}."]
    return "\n".join(lines) + "\n"


def _causes(measured: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The rows that miss the goal, with their causes."""
    missed: dict[str, list[str]] = {}
    for row in ROWS:
        found = measured.get(row.attack)
        if found and (_ratio(found) or 0) > GOAL:
            missed.setdefault(row.cause or "Not known.", []).append(row.attack)
    if not missed:
        return []
    causes = (f"* {', '.join(attacks)}: {cause}" for cause, attacks in missed.items())
    return ["", "These miss the goal:", "", *causes]


def _ratio(found: Mapping[str, Any]) -> float | None:
    if not found["alone"] or not found["attacked"]:
        return None
    alone, attacked = (float(statistics.median(found[each])) for each in ("alone", "attacked"))
    return attacked / alone


def _cells(found: Mapping[str, Any], results: Mapping[str, Any]) -> tuple[str, ...]:
    alone, attacked = found["alone"], found["attacked"]
    times = ("", "", "")
    if (ratio := _ratio(found)) is not None:
        one, other = statistics.median(alone), statistics.median(attacked)
        times = (f"{one:.2f} s", f"{other:.2f} s", f"{ratio:.1f}")
    limits = results["limits_mib"]
    memory = (
        "" if found[key] is None else f"{found[key]:.0f} MiB ({limits[key]})"
        for key in ("operator_mib", "rl_api_mib")
    )
    return (*times, str(found["lapsed"]), str(found["ended"]), *memory)


def write(page: Path, results: Mapping[str, Any]) -> None:
    """Write the part of the page."""
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table(results)}{END}{after}", encoding="utf-8")
