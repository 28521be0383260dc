"""The plan for a fleet whose real plan raised: nothing changes, and pauses are renewed.

Pauses are renewed for as long as a rollout and a rollback may take. The plan reads as little as
possible, because the real plan has just failed on the same fleet.
"""

from __future__ import annotations

from fleet_operator.core import worker_calls, worker_failures
from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.fleet_plan import FleetPlan
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.rollout_plan import RolloutPlan
from fleet_operator.core.strategies.base import Step
from fleet_operator.core.worker_view import Standing
from rlfleet_resources.weights_status import RolloutPhase

_NOTE = "the operator renews pauses until it can compute a plan again"


def fallback_plan(observed: FleetObserved) -> RolloutPlan:
    """A rollout that only renews the pauses that end soon.

    In an External fleet it renews none: they are the trainer's.
    """
    recorded = observed.status.applied
    model = observed.spec.model
    applied = (
        Checkpoint.recorded(recorded)
        if recorded is not None
        else Checkpoint(version=model.version, source=model.source)
    )
    settings = observed.spec.rollout
    held = observed.workers.where(lambda f: f.standing is Standing.HELD)
    renewed = tuple(
        worker_calls.pause(w, settings, reason=_NOTE)
        for w in held
        if not observed.is_external
        and worker_calls.needs_renewal(w)
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
            holds_requests=bool(held),
            requeue_after_seconds=worker_failures.WAIT_SECONDS,
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
