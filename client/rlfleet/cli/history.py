"""`rlfleet history`: the last rollouts and what they cost."""

from __future__ import annotations

from rlfleet.cli import cluster, show
from rlfleet.cli.options import Context, Format, Kubeconfig, Name, Namespace, Output


def history(
    name: Name = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Format = Output.TABLE,
) -> None:
    """Show the last rollouts, newest first, with their durations and longest pauses."""
    weights = cluster.find(cluster.connect_fleet(name, namespace, context, kubeconfig), name)
    entries = weights.status.history
    rows = [
        [
            entry.version,
            entry.result,
            entry.started_at.strftime("%Y-%m-%d %H:%M:%S"),
            show.seconds(entry.total_seconds),
            show.seconds(entry.max_worker_pause_seconds),
            entry.requested_by,
            *([entry.run_id or ""] if output is Output.WIDE else []),
            entry.reason,
            *([entry.message] if output is Output.WIDE else []),
        ]
        for entry in entries
    ]
    run, message = (["RUN"], ["MESSAGE"]) if output is Output.WIDE else ([], [])
    columns = [
        "VERSION",
        "RESULT",
        "STARTED (UTC)",
        "TOOK",
        "LONGEST PAUSE",
        "REQUESTED BY",
        *run,
        "REASON",
        *message,
    ]
    show.show(entries, output, lambda: show.console().print(show.table(columns, rows)))
