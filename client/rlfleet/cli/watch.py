"""`rlfleet watch`: one fleet, live: workers as a grid, the phase and the pause clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from rlfleet.cli import cluster, show
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.cli.view import FleetView, fleet_view
from rlfleet.errors import Refused
from rlfleet.ports import Place
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
PER_LINE = 50
MOST_CELLS = 1000


def watch(
    name: Name = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = 0.5,
    until_applied: Annotated[
        bool, typer.Option("--until-applied", help="End with the outcome of the rollout.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Follow one fleet until Ctrl-C. In a pipe it prints one line for each change."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    target = cluster.find(objects, name).metadata.name
    console = show.console()
    looks = _looks(objects, target, interval, until_applied=until_applied)
    try:
        if console.is_terminal:
            with Live(console=Console(highlight=False), auto_refresh=False) as live:
                for found in looks:
                    live.update(screen(found), refresh=True)
        else:
            _print_changes(console, looks)
    except KeyboardInterrupt:
        return


def _looks(
    objects: Place, name: str, interval: float, *, until_applied: bool
) -> Iterator[FleetView]:
    """Look at the fleet repeatedly. Errors: Refused, with `until_applied`."""
    while True:
        weights = cluster.find(objects, name)
        fleet = cluster.existing_fleet_of(objects, weights)
        yield fleet_view(fleet, [weights], cluster.now())
        if until_applied and weights.is_observed:
            stalled = weights.condition("Stalled")
            if weights.status.phase == "Applied":
                return
            if stalled is not None and stalled.status == "True":
                raise Refused(weights.spec.version, stalled.reason, stalled.message)
        time.sleep(interval)


def _print_changes(console: Console, looks: Iterator[FleetView]) -> None:
    before = ""
    for found in looks:
        line = summary(found)
        if line != before:
            console.print(line, markup=False)
            before = line


def summary(found: FleetView) -> str:
    """One line that changes only when the rollout does."""
    (one,) = found.rollouts
    counts = found.workers.model_dump()
    states = ", ".join(f"{n} {state}" for state, n in counts.items() if n and state != "total")
    reasons = "".join(f", {c.type}: {c.reason}" for c in one.attention)
    phase = one.phase if one.observed else "not seen yet"
    return f"{one.name} {one.desired}: {phase}, {one.workers or '0'} applied, {states}{reasons}"


def screen(found: FleetView) -> Group:
    """The whole screen of one look."""
    (one,) = found.rollouts
    lag = f", {show.plural(one.lag, 'version')} behind" if one.lag else ""
    phase = Text(f"  {one.phase if one.observed else 'not seen yet'}", style="bold")
    if one.phase_seconds is not None:
        phase.append(f" for {show.seconds(one.phase_seconds)}", style="not bold")
    pause = Text(f"  longest pause {show.seconds(one.longest_pause_seconds)}")
    if one.pause_seconds is not None:
        pause = Text(f"  paused for {show.seconds(one.pause_seconds)}", style="yellow")
    lines = [
        Text(f"{found.namespace}/{one.name}", style="bold"),
        Text(f"  desired {one.desired}, applied {one.applied or '-'}{lag}"),
        phase,
        pause,
        *grid(found.workers),
        legend(found.workers),
    ]
    for condition in (*found.attention, *one.attention):
        words = f"✗ {condition.type}, {condition.reason}: {condition.message}"
        lines.append(Text(words, style="red"))
    return Group(*lines)


def grid(counts: WorkerCounts) -> Iterator[Text]:
    """One cell for each worker, by state; large fleets are drawn to scale."""
    numbers = {state: getattr(counts, state) for state in CELLS}
    scale = max(1, -(-sum(numbers.values()) // MOST_CELLS))
    cells = [state for state, number in numbers.items() for _ in range(-(-number // scale))]
    for start in range(0, len(cells), PER_LINE):
        line = Text("  ")
        for state in cells[start : start + PER_LINE]:
            line.append(*CELLS[state])
        yield line


def legend(counts: WorkerCounts) -> Text:
    """The number of workers in each state, in the colours of the grid."""
    line = Text("  ")
    for state, (cell, colour) in CELLS.items():
        if number := getattr(counts, state):
            line.append(f"{cell} {number} {state}  ", colour)
    return line
