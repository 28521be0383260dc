"""Keeps a run's versions growing.

A trainer that restarts and publishes step 0 again would take the whole fleet back unnoticed. Within
one `runID` numeric versions only grow; to go back, `spec.rollbackTo` names the version. Until the run
has arrived there, it also permits the versions after it, since the trainer may publish the next one
before. Later it permits nothing, so that it need not be removed.

The API server refuses what it can see (the step from one spec to the next, where `rollbackTo` must be
new); what it cannot see, a WeightVersion that was deleted and recreated, is refused here. So the
permission must have left its mark on this object's status: a version that was merely asked for leaves
none.
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
    if spec.run_id is None or spec.run_id != applied.run_id or may_go_back(weights):
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


def may_go_back(weights: WeightsView) -> bool:
    """Whether `spec.rollbackTo` permits the version: it names it, or the run is on its way back there
    and the version is a later one.

    A status that speaks of a version beyond has not seen the patch that went back: it and a later
    one came together, and the API server has let both pass.
    """
    spec, status = weights.spec, weights.status
    if spec.rollback_to is None or spec.rollback_to == spec.version:
        return spec.rollback_to is not None
    wanted, first = number_of(spec.version), number_of(spec.rollback_to)
    if wanted is None or first is None or wanted < first or status.desired_run_id != spec.run_id:
        return False
    before = number_of(status.desired_version or "")
    return status.rollback_to == spec.rollback_to or (before is not None and before > wanted)
