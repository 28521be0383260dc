"""`rlfleet watch`: one fleet, live: its workers, the phase, the pause clock, a timeline, last rollouts and Events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from rlfleet.cli import cluster, keys, live, operators, show
from rlfleet.cli.options import Context, Kubeconfig, Name, Namespace
from rlfleet.cli.screen import FleetScreen, summary
from rlfleet.cli.view import FleetView, fleet_view
from rlfleet.errors import Refused
from rlfleet.follow import missing
from rlfleet.ports import Place
from rlfleet.resources import InferenceFleet, WeightVersion
from rlfleet.rollout import Asked, is_about, trouble_of


def watch(
    name: Name = None,
    interval: Annotated[float, typer.Option(min=0.1, help="Seconds between refreshes.")] = 0.5,
    until_applied: Annotated[
        bool, typer.Option("--until-applied", help="Exit when the rollout ends.")
    ] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Follow one fleet until q or Ctrl-C. In a pipe it prints one line for each change."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    seen = cluster.look(objects, name)
    target = seen.name
    operators.warn(objects, [seen.fleet] if seen.fleet else [], cluster.now())
    if until_applied:
        cluster.find(objects, target)
    console = show.console()
    details = live.Live(objects)
    try:
        with keys.keys(wanted=console.is_terminal) as pressed:
            looks = _looks(objects, target, interval, pressed, until_applied=until_applied)
            if console.is_terminal:
                with Live(console=Console(highlight=False), auto_refresh=False) as screen:
                    size = screen.console.size
                    for fleet, weights, found in looks:
                        detail = details.look(fleet, weights, cluster.now())
                        if size != screen.console.size:
                            # The terminal has wrapped the lines again, so their number is not known.
                            size = screen.console.size
                            screen.console.clear()
                        screen.update(FleetScreen(found, detail), refresh=True)
            else:
                _print_changes(console, (found for _, _, found in looks))
    except KeyboardInterrupt:
        return


def _looks(
    objects: Place, name: str, interval: float, pressed: keys.Keys, *, until_applied: bool
) -> Iterator[tuple[InferenceFleet, WeightVersion | None, FleetView]]:
    """Look at the fleet repeatedly, until `q` is pressed.

    Errors, with `until_applied`: Refused; NotFound after a deletion.
    """
    while True:
        fleet, weights = cluster.find_fleet(objects, name)
        yield fleet, weights, fleet_view(fleet, [weights] if weights else [], cluster.now())
        if until_applied and weights is None:
            raise missing(name, objects.namespace)
        if until_applied and weights is not None and is_about(Asked.by(weights), weights):
            if weights.status.phase == "Applied":
                return
            if (stalled := trouble_of(weights)) is not None:
                raise Refused(weights.spec.version, stalled.reason, stalled.message)
        if pressed.pressed("q", interval):
            return


def _print_changes(console: Console, looks: Iterator[FleetView]) -> None:
    before = ""
    for found in looks:
        line = summary(found)
        if line != before:
            console.print(line, markup=False)
            before = line
