"""WeightVersions that steer nothing, and why."""

from __future__ import annotations

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.counts import counted
from fleet_operator.core.observed import FleetObserved, WeightsView

FLEET_GRACE_SECONDS = 30.0
"""A fleet that is missing may come so much later than a WeightVersion that names it."""

Refusal = tuple[ConditionReason, str]
"""Reason and message."""


def refusal_of(observed: FleetObserved, weights: WeightsView) -> Refusal | None:
    """Why this WeightVersion does not steer the fleet that it names, if it does not."""
    if observed.is_external:
        told = (
            f"fleet {observed.name} is driven by its trainer (spec.weights.management: External); "
            "delete this WeightVersion, or set the fleet's management to Operator"
        )
        return ConditionReason.EXTERNALLY_MANAGED, told
    steering = observed.steers(weights)
    adapter = weights.spec.adapter
    if steering is not None and steering.uid != weights.uid:
        what = f"the fleet's adapter {adapter}" if adapter else "this fleet's weights"
        told = f"WeightVersion {steering.name} is older and steers {what}; delete one"
        second = ConditionReason.SECOND_ADAPTER_VERSION
        return second if adapter else ConditionReason.SECOND_BASE_VERSION, told
    if adapter == observed.spec.model.name:
        told = f"{adapter!r} is what requests name for the base weights; name the adapter otherwise"
        return ConditionReason.INVALID_SPEC, told
    if adapter and all(w.uid != weights.uid for w in observed.adapter_weights):
        most = counted(observed.spec.adapters.max, "adapter")
        told = (
            f"fleet {observed.name} serves at most {most}; raise its spec.adapters.max (its workers "
            "are made anew), or delete another adapter's WeightVersion"
        )
        return ConditionReason.NO_ROOM_FOR_ADAPTERS, told
    return None


def orphan_refusal(key: tuple[str, str]) -> Refusal:
    """Why a WeightVersion without a fleet steers nothing. `key`: namespace and name of the fleet."""
    namespace, fleet = key
    told = f"there is no InferenceFleet {fleet!r} in namespace {namespace!r}; create it"
    return ConditionReason.FLEET_NOT_FOUND, told
