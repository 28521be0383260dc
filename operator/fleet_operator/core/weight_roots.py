"""Refuses a source outside of the fleet's weight roots, before any worker is called.

The version is filled in first. The operator cannot follow links: the workers check the path again.
"""

from __future__ import annotations

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.strategies.base import RolloutProblem
from rlfleet_resources.reasons import ConditionReason


def roots_problem(wanted: Checkpoint, observed: FleetObserved) -> RolloutProblem | None:
    """Why the fleet may not load from the source; None if it may.

    The directory of the model is always allowed, because workers start on it.
    """
    source, roots = wanted.source, observed.spec.weights.roots
    if source == observed.spec.model.source or source.roots(roots) != []:
        return None
    message = (
        f"{source} is not below a weight root of fleet {observed.name}: {', '.join(roots)}. The "
        "fleet stays on the applied version. Move the files, or add their place to spec.weights.roots."
    )
    return RolloutProblem(reason=ConditionReason.SOURCE_OUTSIDE_ROOTS, message=message, halt=False)
