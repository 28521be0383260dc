"""The screen of `rlfleet watch` for one look at a fleet: pure."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group
from rich.text import Text

from rlfleet.cli.view import FleetView, PhaseView, RolloutView, troubles
from rlfleet.cli.words import plural, seconds
from rlfleet.resources import WorkerCounts

CELLS = {
    "serving": ("■", "green"),
    "staging": ("■", "cyan"),
    "paused": ("■", "yellow"),
    "loading": ("■", "magenta"),
    "joining": ("□", "blue"),
    "broken": ("✗", "red"),
    "quarantined": ("✗", "bright_black"),
}
"""State → cell and colour. The order is that of the grid."""
_OVERLAPPING = {
    "quarantined": ("broken", "joining", "serving"),
    "staging": ("serving", "joining", "paused"),
}
"""States of workers that are in another state, too; each worker has one cell."""
PHASE_COLOURS = {
    "Staging": "cyan",
    "Pausing": "yellow",
    "Loading": "magenta",
    "Resuming": "green",
}
PER_LINE = 50
MOST_CELLS = 1000


def summary(found: FleetView) -> str:
    """One line that changes only when the fleet or its rollout does."""
    end = "".join(f", {c.type}: {c.reason}" for _, c in troubles([found]))
    counts = found.workers.model_dump()
    states = [f"{n} {state}" for state, n in counts.items() if n and state != "total"]
    for one in found.rollouts:
        phase = one.phase if one.observed else "not seen yet"
        shown = ", ".join([f"{one.workers or '0'} applied", *states])
        return f"{one.name} {one.desired}: {phase}, {shown}{end}"
    return f"{found.name}: {', '.join([*_versions(found), *states])}{end}"


def screen(found: FleetView) -> Group:
    """The whole screen of one look."""
    lines = [Text(f"{found.namespace}/{found.name}", style="bold")]
    for one in found.rollouts:
        lines = [Text(f"{one.namespace}/{one.name}", style="bold"), *_rollout(one)]
    if not found.rollouts:
        lines.append(Text(f"  {', '.join(_versions(found)) or 'no version'}"))
    lines += [*grid(found.workers), legend(found.workers)]
    for _, condition in troubles([found]):
        words = f"✗ {condition.type}, {condition.reason}: {condition.message}"
        lines.append(Text(words, style="red"))
    return Group(*lines)


def _rollout(one: RolloutView) -> Iterator[Text]:
    """Versions, phase, pause clock and timeline."""
    lag = f", {plural(one.lag, 'version')} behind" if one.lag else ""
    yield Text(f"  desired {one.desired}, applied {one.applied or '-'}{lag}")
    phase = Text(f"  {one.phase if one.observed else 'not seen yet'}", style="bold")
    if one.phase_seconds is not None:
        phase.append(f" for {seconds(one.phase_seconds)}", style="not bold")
    yield phase
    if one.pause_seconds is None:
        yield Text(f"  longest pause {seconds(one.longest_pause_seconds)}")
    else:
        yield Text(f"  paused for {seconds(one.pause_seconds)}", style="yellow")
    yield from timeline(one.phases)


def timeline(phases: tuple[PhaseView, ...]) -> Iterator[Text]:
    """The phases of the rollout to scale, end to end, with their durations below."""
    whole = sum(one.seconds for one in phases)
    if not whole:
        return
    bar, names = Text("  "), Text("  ")
    for one in phases:
        if one.seconds or one.running:
            colour = PHASE_COLOURS[one.phase]
            bar.append("━" * max(1, round(PER_LINE * one.seconds / whole)), colour)
            going_on = "…" if one.running else ""
            names.append(f"{one.phase.lower()} {seconds(one.seconds)}{going_on}  ", colour)
    yield bar
    yield names


def grid(counts: WorkerCounts) -> Iterator[Text]:
    """One cell for each worker, by state; large fleets are drawn to scale."""
    numbers = _cells(counts)
    scale = max(1, -(-sum(numbers.values()) // MOST_CELLS))
    cells = [state for state, number in numbers.items() for _ in range(-(-number // scale))]
    for start in range(0, len(cells), PER_LINE):
        line = Text("  ")
        for state in cells[start : start + PER_LINE]:
            line.append(*CELLS[state])
        yield line


def _cells(counts: WorkerCounts) -> dict[str, int]:
    numbers = {state: getattr(counts, state) for state in CELLS}
    for state, others in _OVERLAPPING.items():
        left = numbers[state]
        for other in others:
            taken = min(left, numbers[other])
            numbers[other] -= taken
            left -= taken
    return numbers


def legend(counts: WorkerCounts) -> Text:
    """The number of workers in each state, in the colours of the grid."""
    line = Text("  ")
    for state, (cell, colour) in CELLS.items():
        if number := getattr(counts, state):
            line.append(f"{cell} {number} {state}  ", colour)
    return line


def _versions(found: FleetView) -> list[str]:
    """The served versions, for a fleet without a rollout."""
    return [f"{plural(one.workers, 'worker')} with version {one.version}" for one in found.versions]
