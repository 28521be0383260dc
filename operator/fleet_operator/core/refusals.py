"""WeightVersions that steer nothing, and why."""

from __future__ import annotations

from fleet_operator.api.conditions import ConditionReason
from fleet_operator.core.observed import FleetObserved, WeightsView

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
    base = observed.base_weights
    if base is None or base.uid == weights.uid:
        return None
    told = f"WeightVersion {base.name} is older and steers this fleet's weights; delete one"
    return ConditionReason.SECOND_BASE_VERSION, told


def orphan_refusal(key: tuple[str, str]) -> Refusal:
    """Why a WeightVersion without a fleet steers nothing. `key`: namespace and name of the fleet."""
    namespace, fleet = key
    told = f"there is no InferenceFleet {fleet!r} in namespace {namespace!r}; create it"
    return ConditionReason.FLEET_NOT_FOUND, told
