"""The figures of a size, and what they must not exceed on 2 cores."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]

MAX_WRITES = {16: 7, 256: 7, 1000: 8, 10_000: 10}
"""Workers → writes of the operator to the API server for one rollout."""


_PROGRESS_SECONDS = 1.0
_OBJECTS = 2


def write_budget(workers: int, seconds: float) -> int:
    """The writes that a rollout may cost, by its size and duration.

    Progress is written at most once a second for each of the two objects, fleet and WeightVersion. So a
    rollout that a slow machine draws out has more writes.
    """
    return MAX_WRITES[workers] + _OBJECTS * int(seconds / _PROGRESS_SECONDS)


@dataclass(frozen=True, slots=True)
class Figure:
    """One row of the table.

    Fields:
        of: reads it out of the results of a size.
        goals: by workers.
        has_limit: whether it may not become worse from run to run. What is measured of others, or of
            the machine, may.
    """

    name: str
    of: Callable[[Row], float]
    unit: Callable[[float], str]
    goals: Mapping[int, float] = field(default_factory=dict)
    has_limit: bool = True

    def value(self, row: Row) -> float | None:
        """The value for a size; None if the run ended before it."""
        try:
            return self.of(row)
        except (KeyError, statistics.StatisticsError, ZeroDivisionError, ValueError):
            return None


def _median(row: Row, client: str = "") -> float:
    rollouts = row["contenders"][client] if client else row["rollouts"]
    return float(statistics.median(r["seconds"] for r in rollouts))


def _most_writes(row: Row) -> float:
    return float(max(r["writes"] for r in row["rollouts"]))


def cpu_of_a_call(row: Row) -> float:
    """Processor seconds of the operator for one call or question, everything included."""
    used = sum(r["cpu_seconds"] for r in row["rollouts"])
    return float(used / sum(r["calls"] for r in row["rollouts"]))


def slowest_decision(row: Row) -> float:
    """Processor seconds of the decision that takes longest; the quickest repetition of each counts."""
    return float(max(min(d["cpu_seconds"]) for d in row["decide"]))


def _ms(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value >= 0.01 else f"{1000 * value:.2f} ms"


def _s(value: float) -> str:
    return f"{value:.3f} s" if value < 10 else f"{value:.0f} s"


def _mib(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


def _count(value: float) -> str:
    return f"{value:.0f}"


def _ratio(value: float) -> str:
    return f"{value:.2f}"


def _percent(value: float) -> str:
    return f"{value:.1f} %"


def _each(*values: float) -> dict[int, float]:
    return dict(zip(MAX_WRITES, values, strict=True))


def _mebi(*values: float) -> dict[int, float]:
    return {size: value * 2**20 for size, value in _each(*values).items()}


FIGURES = (
    Figure("patch to last worker resumed, p50", _median, _s, _each(0.04, 0.12, 0.45, 3.5)),
    Figure("by hand, one aiohttp session", lambda r: _median(r, "aiohttp"), _s, has_limit=False),
    Figure(
        "by hand, one httpx client per worker", lambda r: _median(r, "httpx"), _s, has_limit=False
    ),
    Figure(
        "÷ by hand with aiohttp",
        lambda r: _median(r) / _median(r, "aiohttp"),
        _ratio,
        {256: 0.6, 1000: 0.5, 10_000: 0.5},
    ),
    Figure("API writes per rollout, most", _most_writes, _count, MAX_WRITES),
    Figure("API writes at rest", lambda r: r["rest"]["writes"], _count, _each(0, 0, 0, 0)),
    Figure(
        "processor time at rest, of a core",
        lambda r: r["rest"]["cpu_percent"],
        _percent,
        _each(0.5, 0.5, 1, 3),
    ),
    Figure(
        "worst lag of the event loop",
        lambda r: r["worst_lag_seconds"],
        _ms,
        _each(0.05, 0.1, 0.2, 0.5),
        has_limit=False,
    ),
    Figure(
        "the same, without time in which others had the processor",
        lambda r: r["worst_busy_seconds"],
        _ms,
    ),
    Figure("one decision, slowest phase", slowest_decision, _ms, _each(0.001, 0.004, 0.015, 0.12)),
    Figure(
        "operator's processor time per call",
        cpu_of_a_call,
        _ms,
        _each(0.00012, 0.00012, 0.00012, 0.00012),
    ),
    Figure("peak memory", lambda r: r["peak_memory_bytes"], _mib, _mebi(90, 110, 140, 250)),
    Figure(
        "fleet created to all serving", lambda r: r["bring_up"]["seconds"], _s, {256: 10, 1000: 40}
    ),
    Figure(
        "operator killed in the middle of a rollout: until all serve",
        lambda r: r["takeover"]["seconds"],
        _s,
    ),
    Figure(
        "load average of the machine afterwards",
        lambda r: r["load_averages"][-1],
        _ratio,
        has_limit=False,
    ),
    Figure("Leases lost", lambda r: r["leases_lost"], _count, _each(0, 0, 0, 0)),
)
