"""Refuses a version lower than the last number of the same run, unless `spec.rollbackTo` permits it.

A trainer that restarts and publishes step 0 again would roll the fleet back unnoticed. So numeric
versions only grow within one `runID`. Weights without a run are a run of their own. A name such as
`final` has no place in this order: after it the number that was in use before it counts.

For a rollback, `spec.rollbackTo` names the version. Until the fleet has reached it, `rollbackTo` also
permits later versions, because the trainer may publish the next one meanwhile. After that it permits
nothing, so that it need not be removed.

The API server compares the old spec with the new one, and requires a new `rollbackTo`. It cannot see
that a WeightVersion was deleted and recreated, nor what was before a name. This module refuses that: the permission must be in
the status of this object, and a version that was only desired leaves no permission.
"""

from __future__ import annotations

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.observed import WeightsView
from fleet_operator.core.pins import Pins
from fleet_operator.core.strategies.base import RolloutProblem
from fleet_worker.protocol import number_of
from rlfleet_resources.reasons import ConditionReason


def rollback_problem(
    weights: WeightsView, applied: Checkpoint, pins: Pins
) -> RolloutProblem | None:
    """Why the fleet refuses a lower version of the run; None if it does not."""
    spec = weights.spec
    if spec.run_id != applied.run_id or may_go_back(weights):
        return None
    last = applied.version
    if number_of(last) is None:
        last = pins.last_number_before(applied) or last
    wanted, reached = number_of(spec.version), number_of(last)
    if wanted is None or reached is None or wanted >= reached:
        return None
    run = "without spec.runID, the fleet" if spec.run_id is None else f"run {spec.run_id}"
    another = "a spec.runID" if spec.run_id is None else "another spec.runID"
    message = (
        f"{run} has reached version {last} already, and spec.version is {spec.version}. "
        f'The fleet stays on the applied version. To go back, set spec.rollbackTo: "{spec.version}". '
        f"For a new run, set {another}."
    )
    return RolloutProblem(reason=ConditionReason.REWIND_REFUSED, message=message, halt=False)


def may_go_back(weights: WeightsView) -> bool:
    """Whether `spec.rollbackTo` permits the version.

    It does if it names the version, or if the rollback is not finished and the version is a later
    one. A status with a higher version has not seen the patch that began the rollback: that patch
    and a later one came together, and the API server has accepted both.
    """
    spec, status = weights.spec, weights.status
    if spec.rollback_to is None or spec.rollback_to == spec.version:
        return spec.rollback_to is not None
    wanted, first = number_of(spec.version), number_of(spec.rollback_to)
    if wanted is None or first is None or wanted < first or status.desired_run_id != spec.run_id:
        return False
    before = number_of(status.desired_version or "")
    return status.rollback_to == spec.rollback_to or (before is not None and before > wanted)
