"""`rlfleet workers`: every worker of a fleet, and which of them lag."""

from __future__ import annotations

from rich.markup import escape

from rlfleet.cli import cluster, operators, show
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output
from rlfleet.cli.pods import PodView, pod_view
from rlfleet.cli.view import FleetView, fleet_view
from rlfleet.errors import Forbidden


class WorkersView(FleetView):
    """A fleet with its pods. `pods` is empty where the account may not list them."""

    pods: tuple[PodView, ...]


def workers(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show each worker's pod, how many are in each state, their versions, and lagging workers."""
    objects = cluster.connect_fleet(name, namespace, context, kubeconfig)
    fleet, weights = cluster.find_fleet(objects, name)
    now = cluster.now()
    operators.warn(objects, [fleet], now)
    try:
        pods = [pod_view(pod, fleet, now) for pod in cluster.pods_of(objects, fleet)]
    except Forbidden as error:
        show.errors().print(f"[yellow]warning:[/] the pods are not shown: {escape(str(error))}")
        pods = []
    seen = fleet_view(fleet, [weights] if weights else [], now)
    found = WorkersView(**dict(seen), pods=tuple(pods))
    show.show(found, output, lambda: _render(found, wide=output is Output.WIDE))


def _render(found: WorkersView, *, wide: bool) -> None:
    console = show.console()
    counts = found.workers.model_dump()
    states = [f"{count} {state}" for state, count in counts.items() if count and state != "total"]
    console.print(f"[bold]{escape(found.name)}[/]: {found.workers.total}/{found.replicas} workers")
    console.print(f"  {', '.join(states) or 'no worker'}")
    for one in found.versions:
        console.print(f"  {show.plural(one.workers, 'worker')} with version {escape(one.version)}")
    if found.pods:
        console.print()
        columns = ["POD", "READY", "STATUS", "VERSION", "RESTARTS", "NODE", "AGE"]
        more = ["IP", "TRAFFIC", "TEMPLATE"] if wide else []
        console.print(show.table(columns + more, [_row(one, wide=wide) for one in found.pods]))
    if found.lagging:
        console.print()
        rows = [
            [one.pod, one.state, one.version or "", one.reason, one.message]
            for one in found.lagging
        ]
        console.print(show.table(["LAGGING", "STATE", "VERSION", "REASON", "MESSAGE"], rows))


def _row(one: PodView, *, wide: bool) -> list[str]:
    row = [
        one.name,
        str(one.ready),
        one.status,
        one.version or "",
        str(one.restarts),
        one.node,
        show.seconds(one.age_seconds),
    ]
    return [*row, one.ip, one.traffic, one.revision] if wide else row
