"""Decides which WeightVersions steer no fleet, and why."""

from __future__ import annotations

from fleet_operator.core.observed import FleetObserved, UnreadWeights, WeightsView
from fleet_operator.counts import counted
from rlfleet_resources.reasons import ConditionReason

FLEET_GRACE_SECONDS = 30.0
"""How much later than a WeightVersion its fleet may be created."""

LOOKED_AT = 128
"""How many WeightVersions of a fleet count, the oldest ones. A fleet needs one, and one for each of its
adapters, at most 65."""

NotSteering = tuple[ConditionReason, str]
"""Reason and message."""


def not_steering(observed: FleetObserved, weights: WeightsView) -> NotSteering | None:
    """Why this WeightVersion does not steer its fleet; None if it does."""
    if observed.is_external:
        message = (
            f"a trainer updates fleet {observed.name} (spec.weights.management: External); delete "
            "this WeightVersion, or set management of the fleet to Operator"
        )
        return ConditionReason.EXTERNALLY_MANAGED, message
    steering = observed.steers(weights)
    adapter = weights.spec.adapter
    if steering is not None and steering.uid != weights.uid:
        what = f"the fleet's adapter {adapter}" if adapter else "this fleet's weights"
        message = f"WeightVersion {steering.name} is older and "
        if isinstance(steering, UnreadWeights):
            message += f"has the place of {what}, but cannot be read; repair its spec, or delete it"
        else:
            message += f"steers {what}; delete one of the two"
        second = ConditionReason.SECOND_ADAPTER_VERSION
        return second if adapter else ConditionReason.SECOND_BASE_VERSION, message
    if observed.has_model_name(weights):
        message = f"{adapter!r} is the name of the base model in requests; give the LoRA adapter another name"
        return ConditionReason.INVALID_SPEC, message
    if adapter and not observed.has_slot(weights):
        most = counted(observed.spec.adapters.max, "adapter")
        message = (
            f"fleet {observed.name} serves at most {most}; raise its spec.adapters.max (which recreates "
            "its workers), or delete the WeightVersion of another adapter"
        )
        return ConditionReason.NO_ROOM_FOR_ADAPTERS, message
    return None


def too_many(fleet: str) -> NotSteering:
    """Why a WeightVersion that its fleet does not look at has no effect. `fleet`: its name."""
    message = (
        f"fleet {fleet} looks at its oldest {LOOKED_AT} WeightVersions only, and this one is newer; delete "
        "those that the fleet does not need"
    )
    return ConditionReason.TOO_MANY, message


def missing_fleet(key: tuple[str, str]) -> NotSteering:
    """Why a WeightVersion without a fleet has no effect. `key`: namespace and name of the fleet."""
    namespace, fleet = key
    message = f"there is no InferenceFleet {fleet!r} in namespace {namespace!r}; create it"
    return ConditionReason.FLEET_NOT_FOUND, message
