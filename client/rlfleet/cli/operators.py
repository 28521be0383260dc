"""Whether an operator drives fleets, asked of the Leases that their statuses name."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.api import Api
from rlfleet.cli.leadership import problem_of
from rlfleet.errors import NotFound, RlfleetError
from rlfleet.resources import InferenceFleet


def problem(api: Api, fleet: InferenceFleet, now: datetime) -> str:
    """Why no operator drives a fleet; empty if one does, or if this account may not see it."""
    namespace, _, name = fleet.status.operator.partition("/")
    if not name:
        return ""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
    try:
        return problem_of(cluster.get(api, path), now)
    except NotFound:
        return "its Lease does not exist"
    except RlfleetError:
        return ""


def warn(api: Api, fleets: Iterable[InferenceFleet], now: datetime) -> None:
    """Print a warning for each operator that has gone, since the statuses of its fleets are old."""
    driven: dict[str, list[InferenceFleet]] = {}
    for fleet in fleets:
        driven.setdefault(fleet.status.operator, []).append(fleet)
    for operator, its_fleets in driven.items():
        if found := problem(api, its_fleets[0], now):
            number = show.plural(len(its_fleets), "fleet")
            show.errors().print(
                f"[yellow]warning:[/] no operator drives {number} of {escape(operator)}: "
                f"{escape(found)}; see rlfleet doctor. What is shown is as old as that"
            )
