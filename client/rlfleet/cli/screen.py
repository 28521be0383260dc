"""The screen of `rlfleet watch` for one look at a fleet: pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.text import Text

from rlfleet.cli.cells import CELLS, MOST_CELLS, cells, scale_of
from rlfleet.cli.live import Detail
from rlfleet.cli.tables import past_lines, worker_lines
from rlfleet.cli.view import FleetView, PhaseView, RolloutView, named, troubles
from rlfleet.words import plural, seconds
from rlfleet_resources.fleet_status import WorkerCounts

_COLOURS = {
    "serving": "green",
    "staging": "cyan",
    "paused": "yellow",
    "loading": "magenta",
    "joining": "blue",
    "broken": "red",
    "quarantined": "bright_black",
}
PHASE_COLOURS = {
    "Staging": "cyan",
    "Pausing": "yellow",
    "Loading": "magenta",
    "Resuming": "green",
}
PER_LINE = 50
MOST_LINES = MOST_CELLS // PER_LINE + 1
"""Of the grid: a state of a few workers may begin one more."""


def summary(found: FleetView) -> str:
    """One line that changes only when the fleet or its rollout does."""
    end = "".join(f", {named(c)}: {c.reason}" for _, c in troubles([found]))
    counts = found.workers.model_dump()
    states = [f"{n} {state}" for state, n in counts.items() if n and state != "total"]
    for one in found.rollouts:
        phase = one.phase if one.observed else "not seen yet"
        shown = ", ".join([f"{one.workers or '0'} applied", *states])
        return f"{one.name} {one.desired}: {phase}, {shown}{end}"
    return f"{found.name}: {', '.join([*_versions(found), *states])}{end}"


@dataclass(frozen=True, slots=True)
class FleetScreen:
    """The whole screen of one look.

    Workers are rows where those fit, and else a grid, which gets at least one line. Last rollouts and Events
    have the lines that are left.
    """

    found: FleetView
    detail: Detail | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        """The lines from top to bottom. Source: rich, "Console protocol"."""

        def height(lines: list[Text]) -> int:
            return sum(len(console.render_lines(line, options, pad=False)) for line in lines)

        above, below = _above(self.found), _below(self.found)
        left = options.size.height - height([*above, *below])
        rows = worker_lines(self.detail.workers) if self.detail else []
        if not rows or height(rows) > left:
            rows = list(grid(self.found.workers, max(1, left)))
        yield from above
        yield from rows
        yield from below
        left -= height(rows)
        for heading, *lines in past_lines(self.detail) if self.detail else ():
            part = [heading]
            for line in lines:
                if height([*part, line]) > left:
                    break
                part.append(line)
            if part[1:]:
                yield from part
                left -= height(part)


def _above(found: FleetView) -> list[Text]:
    lines = [Text(f"{found.namespace}/{found.name}", style="bold")]
    for one in found.rollouts:
        lines = [Text(f"{one.namespace}/{one.name}", style="bold"), *_rollout(one, found)]
    if not found.rollouts:
        lines.append(Text(f"  {', '.join(_versions(found)) or 'no version'}"))
    return lines


def _below(found: FleetView) -> list[Text]:
    return [legend(found.workers)] + [
        Text(f"✗ {named(condition)}, {condition.reason}: {condition.message}", style="red")
        for _, condition in troubles([found])
    ]


def _rollout(one: RolloutView, fleet: FleetView) -> Iterator[Text]:
    """Versions, phase, pause clock and timeline. A clock is that of the phase that is shown."""
    versions = plural(abs(one.lag or 0), "version")
    lag = f", {versions} {'behind' if one.lag > 0 else 'to go back'}" if one.lag else ""
    yield Text(f"  desired {one.desired}, applied {one.applied or '-'}{lag}")
    reached = (one.workers or "0") if one.observed else "not seen by the operator yet"
    serving = f"{fleet.workers.serving}/{fleet.replicas}"
    yield Text(f"  serving {serving}, at {one.desired}: {reached}")
    phase = Text(f"  {one.phase if one.observed else 'not seen yet'}", style="bold")
    if one.phase_seconds is not None and one.observed:
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


def grid(counts: WorkerCounts, most_lines: int = MOST_LINES) -> Iterator[Text]:
    """One cell for each worker, by state; large fleets are drawn to scale. No state is left out."""
    scale = scale_of(counts)
    while sum((numbers := cells(counts, scale)).values()) > PER_LINE * most_lines:
        scale += 1
    states = [state for state, number in numbers.items() for _ in range(number)]
    for start in range(0, len(states), PER_LINE):
        line = Text("  ")
        for state in states[start : start + PER_LINE]:
            line.append(CELLS[state], _COLOURS[state])
        yield line


def legend(counts: WorkerCounts) -> Text:
    """The number of workers in each state, in the colours of the grid."""
    line = Text("  ")
    for state, cell in CELLS.items():
        if number := getattr(counts, state):
            line.append(f"{cell} {number} {state}  ", _COLOURS[state])
    return line


def _versions(found: FleetView) -> list[str]:
    """The served versions, for a fleet without a rollout."""
    return [f"{plural(one.workers, 'worker')} with version {one.version}" for one in found.versions]
