"""The revision of a fleet's spec: a hash of the fields that change a pod."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.memory import SpecCache
from fleet_operator.core.observed import FleetObserved
from rlfleet_resources.quantities import comparable, comparable_resources

_NOT_OF_PODS: dict[str, Any] = {
    **dict.fromkeys(
        (
            "replicas",
            "progress_deadline_seconds",
            "rollout",
            "staleness",
            "update",
            "recycle",
            "router",
        ),
        True,
    ),
    "serving": {"service", "inference_pool"},
}
"""Fields of a fleet's spec that change no pod. `update.restartedAt` is added."""
_REVISIONS: SpecCache[str] = SpecCache()


def revision_of(observed: FleetObserved) -> str:
    """The hash of the pod fields of a fleet's spec. A pod with another revision is out of date.

    The operator's release, its default image and defaults of the API are not part of it: a field
    that a later release adds changes no hash. Quantities count as amounts.
    """
    return _REVISIONS.of(observed.spec, make=lambda: _revision_of(observed.spec))


def _revision_of(spec: FleetSpec) -> str:
    given = spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude=_NOT_OF_PODS)
    if not spec.adapters.max:
        given.pop("adapters", None)  # without LoRA adapters their rank has no effect
    named = [_without_empty(_with_amounts(given)), spec.update.restarted_at]
    canonical = json.dumps(named, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:10]


def _with_amounts(said: dict[str, Any]) -> dict[str, Any]:
    made = dict(said)
    if "resources" in said:
        made["resources"] = comparable_resources(said["resources"])
    if memory := said.get("weights", {}).get("stagingMemory"):
        made["weights"] = said["weights"] | {"stagingMemory": comparable(memory)}
    return made


def _without_empty(said: dict[str, Any]) -> dict[str, Any]:
    """The fields without objects that hold only defaults."""
    kept = {k: _without_empty(v) if isinstance(v, dict) else v for k, v in said.items()}
    return {k: v for k, v in kept.items() if v != {}}
