"""`rlfleet status`: every fleet and its rollouts at a glance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from rlfleet.cli import candidates, cluster, operators, rl_api, show
from rlfleet.cli.options import Context, Format, Kubeconfig, Namespace, Output
from rlfleet.cli.view import FleetView, fleet_view, named, orphan_views, troubles
from rlfleet.errors import NotFound
from rlfleet_resources.conditions import Condition

COLUMNS = (
    "FLEET",
    "WEIGHTS",
    "READY",
    "WORKERS",
    "DESIRED",
    "APPLIED",
    "LAG",
    "AGE",
    "PHASE",
    "PAUSE",
)
WIDE = ("RUN", "FOR", "SUPERSEDED", "ENDPOINT")


def status(
    name: Annotated[
        str | None,
        typer.Argument(help="Only this WeightVersion or fleet.", autocompletion=candidates.names),
    ] = None,
    namespace: Namespace = None,
    everywhere: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Look into all namespaces.")
    ] = False,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show fleets, versions, lag, age, pauses, and what needs attention.

    AGE is the time since all workers hold the applied weights. PAUSE is the current pause, else
    the longest of a worker in the last rollout.
    """
    if everywhere or (name is None and rl_api.named().url is None):
        objects = cluster.connect(namespace, context, kubeconfig, everywhere=everywhere)
    else:
        objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    fleets, weights, now = cluster.all_fleets(objects), cluster.all_weights(objects), cluster.now()
    found = [fleet_view(fleet, weights, now) for fleet in fleets]
    found += orphan_views(fleets, weights, now)
    if name is not None:
        found = [one for one in found if name in {one.name, *(w.name for w in one.rollouts)}]
        if not found:
            raise NotFound(cluster.not_found(name, weights, fleets, objects.namespace))
    shown = {(one.namespace, one.name) for one in found}
    operators.warn(
        objects, [f for f in fleets if (f.metadata.namespace, f.metadata.name) in shown], now
    )
    show.show(found, output, lambda: _render(found, wide=output is Output.WIDE, all_=everywhere))
    if not found and output in {Output.TABLE, Output.WIDE}:
        there = f" in namespace {objects.namespace!r}; look into all of them: rlfleet status -A"
        show.errors().print(f"There are no fleets{'.' if everywhere else there}")


def _lag(versions: int | None) -> str:
    if versions is None:
        return ""
    return str(versions) if versions >= 0 else f"{-versions} back"


def _render(found: list[FleetView], *, wide: bool, all_: bool) -> None:
    if not found:
        return
    console = show.console()
    columns = (*(("NAMESPACE",) if all_ else ()), *COLUMNS, *(WIDE if wide else ()))
    rows = [
        [*([fleet.namespace] if all_ else []), *row]
        for fleet in found
        for row in rows_of(fleet, wide=wide)
    ]
    console.print(show.table(columns, rows))
    attention(console, found)


def rows_of(fleet: FleetView, *, wide: bool) -> Iterator[list[str]]:
    """One row for each rollout, or one for a fleet without any."""
    counts = f"{fleet.workers.serving}/{fleet.replicas}"
    if not fleet.rollouts:
        served = fleet.versions[0].version if fleet.versions else ""
        desired = fleet.desired or ""
        row = [fleet.name, "", fleet.ready, counts, desired, served, "", "", "", ""]
        yield row + (["", "", "", fleet.endpoint] if wide else [])
    for one in fleet.rollouts:
        holding = one.pause_seconds is not None
        pause = show.seconds(one.pause_seconds if holding else one.longest_pause_seconds)
        yield [
            fleet.name,
            one.name,
            one.ready,
            one.workers or counts,
            one.desired,
            one.applied or "",
            _lag(one.lag),
            show.seconds(one.applied_age_seconds),
            one.phase,
            f"{pause} now" if holding else pause,
        ] + (
            [one.run_id or "", show.seconds(one.phase_seconds), str(one.superseded), fleet.endpoint]
            if wide
            else []
        )


def attention(console: Console, found: list[FleetView]) -> None:
    """Print the conditions that need attention, below the table."""
    lines = troubles(found)
    if lines:
        console.print()
    for name, condition in lines:
        console.print(f"{_mark(condition)} [bold]{escape(name)}[/]: {escape(_words(condition))}")


def _mark(condition: Condition) -> str:
    return "[red]✗[/]" if condition.type == "Stalled" else "[yellow]![/]"


def _words(condition: Condition) -> str:
    return f"{named(condition)}, {condition.reason}: {condition.message}"
