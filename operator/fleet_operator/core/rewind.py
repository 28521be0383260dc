"""Keeps a run's versions growing.

A trainer that restarts and publishes step 0 again would take the whole fleet back unnoticed. Within
one `runID` numeric versions only grow; to go back, `spec.rollbackTo` names the version. It permits that
version and no other, so that it need not be removed afterwards. The API server refuses what it can
see (the step from one spec to the next, where `rollbackTo` must be new); what it cannot see, a
WeightVersion that was deleted and recreated, is refused here.
"""

from __future__ import annotations

import re

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.observed import Target, WeightsView
from fleet_operator.core.step import Problem

_NUMBERED = re.compile(r"(?:step[_-])?([0-9]{1,18})")


def number_of(version: str) -> int | None:
    """The number of a version that is one, `43` or `step_43`; None for other labels."""
    found = _NUMBERED.fullmatch(version)
    return int(found.group(1)) if found else None


def rewind_problem(weights: WeightsView, applied: Target) -> Problem | None:
    """Why a WeightVersion may not take the fleet where it wants to, if it may not."""
    spec = weights.spec
    if spec.rollback_to == spec.version or spec.run_id is None or spec.run_id != applied.run_id:
        return None
    wanted, reached = number_of(spec.version), number_of(applied.version)
    if wanted is None or reached is None or wanted >= reached:
        return None
    message = (
        f"run {spec.run_id} has applied version {applied.version} already and asks for "
        f"{spec.version}. The applied version keeps serving. To go back, set spec.rollbackTo: "
        f'"{spec.version}"; another run takes another spec.runID.'
    )
    return Problem(reason=ConditionReason.REWIND_REFUSED, message=message, halt=False)
