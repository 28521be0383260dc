"""Cells of a fleet whose workers have no rows: one for each, by state. Pure."""

from __future__ import annotations

from rlfleet_resources.fleet_status import WorkerCounts

CELLS = {
    "serving": "■",
    "staging": "■",
    "paused": "■",
    "loading": "■",
    "joining": "□",
    "broken": "✗",
    "quarantined": "✗",
}
"""State → cell, in the order in which they are drawn."""
_OVERLAPPING = {
    "quarantined": ("broken", "joining", "serving"),
    "staging": ("serving", "joining", "paused"),
}
"""States of workers that are in another state, too; each worker has one cell."""
MOST_CELLS = 1000


def cells(counts: WorkerCounts, scale: int) -> dict[str, int]:
    """State → number of cells, each for at most `scale` workers. No state is left out."""
    return {state: -(-number // scale) for state, number in _numbers(counts).items() if number}


def scale_of(counts: WorkerCounts) -> int:
    """Workers for each cell, such that about `MOST_CELLS` are enough."""
    return max(1, -(-sum(_numbers(counts).values()) // MOST_CELLS))


def _numbers(counts: WorkerCounts) -> dict[str, int]:
    numbers = {state: getattr(counts, state) for state in CELLS}
    for state, others in _OVERLAPPING.items():
        left = numbers[state]
        for other in others:
            taken = min(left, numbers[other])
            numbers[other] -= taken
            left -= taken
    return numbers
