"""What stands in the place of a plan that could not be made: nothing changes, and held workers stay
held until they have been held as long as a rollout and the way back may take.

It reads as little as it can, since what it replaces has just failed on the same fleet.
"""

from __future__ import annotations

from fleet_operator.api.weights import RolloutPhase
from fleet_operator.core import calls
from fleet_operator.core.fleet_plan import FleetPlan
from fleet_operator.core.observed import FleetObserved, Standing, Target
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.step import Step

_NOTE = "pauses are renewed until a plan can be made again"


def standstill(observed: FleetObserved) -> RolloutPlan:
    """A rollout that renews the pauses that would end soon, and does no more.

    Workers of an External fleet are left to their trainer.
    """
    recorded = observed.status.applied
    model = observed.spec.model
    applied = (
        Target.recorded(recorded)
        if recorded is not None
        else Target(version=model.version, source=model.source)
    )
    settings = observed.spec.rollout
    held = [w for w in observed.workers if w.standing is Standing.HELD]
    renewed = tuple(
        calls.pause(w, settings, reason=_NOTE)
        for w in held
        if not observed.is_external
        and calls.needs_renewal(w)
        and w.held_seconds < settings.longest_hold_seconds
    )
    return RolloutPlan(
        desired=applied,
        applied=applied,
        serving=observed.status.applied_version,
        halted=False,
        suspended=False,
        step=Step(
            goal=applied,
            phase=RolloutPhase.PENDING,
            actions=renewed,
            note=_NOTE,
            disturbed=bool(held),
            requeue_after_seconds=calls.WAIT_SECONDS,
        ),
    )


def no_pod_changes(observed: FleetObserved) -> FleetPlan:
    """A plan that leaves all pods as they are."""
    revisions = {w.pod.revision for w in observed.workers}
    return FleetPlan(
        revision=revisions.pop() if len(revisions) == 1 else "",
        actions=(),
        outdated=0,
        recycled=observed.status.recycled,
    )
