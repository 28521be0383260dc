"""Whether an operator drives fleets, asked of the Leases that their statuses name, and of the Deployments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from rich.markup import escape

from rlfleet.cli import cluster, show
from rlfleet.cli.api import Api
from rlfleet.cli.diagnosis import problem_of, unfollowed
from rlfleet.errors import NotFound, RlfleetError
from rlfleet.ports import Json
from rlfleet.resources import InferenceFleet


def problem(api: Api, fleet: InferenceFleet, now: datetime) -> str:
    """Why no operator drives a fleet; empty if one does, or if this account may not see it."""
    return _problem(_seen(api, fleet.status.operator, now), fleet)


def _problem(seen: str | Json, fleet: InferenceFleet) -> str:
    return seen if isinstance(seen, str) else unfollowed(seen, fleet.metadata.namespace)


def _seen(api: Api, operator: str, now: datetime) -> str | Json:
    """Why an operator drives no fleet, or its Deployment; empty if this account may not see it."""
    place, _, name = operator.partition("/")
    if not name:
        return ""
    lease = f"/apis/coordination.k8s.io/v1/namespaces/{place}/leases/{name}"
    try:
        if found := problem_of(cluster.get(api, lease), now):
            return found
    except NotFound:
        return "its Lease does not exist"
    except RlfleetError:
        return ""
    try:
        # The chart gives both the same name.
        return cluster.get(api, f"/apis/apps/v1/namespaces/{place}/deployments/{name}")
    except RlfleetError:
        return ""


def warn(api: Api, fleets: Iterable[InferenceFleet], now: datetime) -> None:
    """Print a warning for each operator that has gone, since the statuses of its fleets are old."""
    seen: dict[str, str | Json] = {}
    driven: dict[tuple[str, str], int] = Counter()
    for fleet in fleets:
        operator = fleet.status.operator
        if operator not in seen:
            seen[operator] = _seen(api, operator, now)
        driven[operator, _problem(seen[operator], fleet)] += 1
    for (operator, found), count in driven.items():
        if found:
            show.errors().print(
                f"[yellow]warning:[/] no operator drives {show.plural(count, 'fleet')} of "
                f"{escape(operator)}: {escape(found)}; see rlfleet doctor. What is shown is as old as that"
            )
