"""One fleet at one moment → everything that is to be done now, and everything that is to be said.

All decisions stand behind `decide`. The runtime carries them out, and so does the simulator of the
tests, so that what is proven there is what runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from fleet_operator.api.fleet import FleetStatus
from fleet_operator.api.weights import RolloutPhase, WeightsStatus
from fleet_operator.core import adapters
from fleet_operator.core.actions import DeletePod, PodAction, Quarantine, WorkerCall
from fleet_operator.core.fleet_plan import FleetPlan, plan_fleet
from fleet_operator.core.fleet_status import fleet_status
from fleet_operator.core.observed import FleetObserved, WeightsView
from fleet_operator.core.refusals import refusal_of
from fleet_operator.core.rollout_plan import RolloutPlan, plan_rollout
from fleet_operator.core.weights_status import refused_status, weights_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What to do with a fleet now.

    Fields:
        rollout: of the base weights.
        adapters: uid of an adapter's WeightVersion → its rollout.
        worker_calls: at most one to each worker, and none to one whose pod is deleted now.
        weights: uid → status, of every WeightVersion that names the fleet.
    """

    rollout: RolloutPlan
    adapters: Mapping[str, RolloutPlan]
    pods: FleetPlan
    worker_calls: tuple[WorkerCall, ...]
    pod_actions: tuple[PodAction, ...]
    fleet: FleetStatus
    weights: Mapping[str, WeightsStatus]

    @property
    def at_rest(self) -> bool:
        """Whether every version that is wanted is applied."""
        plans = (self.rollout, *self.adapters.values())
        return all(p.step.phase is RolloutPhase.APPLIED for p in plans)


def decide(observed: FleetObserved, *, default_image: str, now: datetime) -> Decision:
    """Decide everything about one fleet. `default_image`: of workers whose fleet names none."""
    rollout = plan_rollout(observed, now=now)
    disturbed = rollout.step.disturbed
    pods = plan_fleet(observed, default_image=default_image, disturbed=disturbed, now=now)
    plans = {
        w.uid: adapters.plan_adapter(adapters.seen_as(observed, w.spec.adapter), w)
        for w in observed.adapter_weights
    }
    actions = rollout.step.actions
    going = {a.uid for a in pods.actions if isinstance(a, DeletePod)}
    calls = adapters.with_adapters(
        [a for a in actions if not isinstance(a, Quarantine)], observed, plans
    )
    return Decision(
        rollout=rollout,
        adapters=plans,
        pods=pods,
        worker_calls=tuple(c for c in calls if c.pod_uid not in going),
        pod_actions=(*pods.actions, *(a for a in actions if isinstance(a, Quarantine))),
        fleet=fleet_status(observed, rollout, pods, now=now),
        weights={
            w.uid: _weights_status(observed, w, plans.get(w.uid, rollout), now)
            for w in observed.weights
        },
    )


def _weights_status(
    observed: FleetObserved, weights: WeightsView, rollout: RolloutPlan, now: datetime
) -> WeightsStatus:
    refusal = refusal_of(observed, weights)
    if refusal is not None:
        return refused_status(weights, *refusal, now=now)
    if weights.spec.adapter:
        observed = adapters.seen_as(observed, weights.spec.adapter)
    return weights_status(observed, weights, rollout, now=now)
