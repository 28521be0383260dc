"""Refuses a source that lies outside the fleet's weight roots, before any worker is asked.

The version is filled in first. Links are not followed here: what a path really leads to, only the
workers see, and they check it again.
"""

from __future__ import annotations

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.observed import FleetObserved, Target
from fleet_operator.core.step import Problem


def roots_problem(wanted: Target, observed: FleetObserved) -> Problem | None:
    """Why the fleet may not load from a source, if it may not.

    The model's own directory is allowed wherever it lies: workers have started on it.
    """
    path, roots = wanted.source.path, observed.spec.weights.roots
    if path is None or path == observed.spec.model.source.path:
        return None
    if any(path == root or path.startswith(f"{root}/") for root in roots):
        return None
    message = (
        f"{path} does not lie below a weight root of fleet {observed.name}: {', '.join(roots)}. What "
        "is applied keeps serving. Move the files, or add the directory to spec.weights.roots."
    )
    return Problem(reason=ConditionReason.SOURCE_OUTSIDE_ROOTS, message=message, halt=False)
