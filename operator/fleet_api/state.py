"""The document of `GET v1/rl/state`, from objects of the API server: pure."""

from __future__ import annotations

from typing import Any

from fleet_api.fleets import Fleet
from rlfleet.resources import WeightVersion
from rlfleet.rollout import Rollout
from rlfleet_resources.base import Resource


def state_of(fleet: Fleet, weights: WeightVersion | None) -> dict[str, Any]:
    """The fleet and its weights, with the field names of the resources."""
    status = fleet.status
    document: dict[str, Any] = {
        "namespace": fleet.namespace,
        "fleet": fleet.name,
        "model": fleet.spec.model.name,
        "management": fleet.spec.weights.management,
        "endpoint": status.endpoint,
        "generation": fleet.generation,
        "replicas": fleet.spec.replicas,
        "pods": status.replicas,
        "readyReplicas": status.ready_replicas,
        "workers": status.workers.to_json(),
        "versions": [version.to_json() for version in status.versions],
        "laggards": [laggard.to_json() for laggard in status.laggards],
        "observed": status.observed_generation >= fleet.generation,
        "observedGeneration": status.observed_generation,
        "desiredVersion": status.desired_version,
        "appliedVersion": status.applied_version,
        "conditions": [condition.to_json() for condition in status.conditions],
        "weights": None if weights is None else weights_of(weights),
    }
    if status.applied is not None:
        document["applied"] = status.applied.to_json()
    return document


def rollout_of(rollout: Rollout) -> dict[str, Any]:
    """A requested version, as it was seen last."""
    document: dict[str, Any] = {
        "version": rollout.version,
        "applied": rollout.applied,
        "timings": _dump(rollout.timings),
        "workers": _dump(rollout.workers),
        "weights": weights_of(rollout.weights),
    }
    if rollout.run_id is not None:
        document["runID"] = rollout.run_id
    if rollout.effect is not None:
        document["effect"] = _dump(rollout.effect)
    if rollout.unchanged:
        document["unchanged"] = rollout.unchanged
    if rollout.remarks:
        document["remarks"] = rollout.remarks
    return document


def weights_of(weights: WeightVersion) -> dict[str, Any]:
    """A WeightVersion: what is desired, and how far its rollout is."""
    status = weights.status
    spec = _dump(weights.spec)
    return _dump(status) | {
        "name": weights.metadata.name,
        "uid": weights.metadata.uid,
        "generation": weights.metadata.generation,
        "resourceVersion": weights.metadata.resource_version,
        "retry": weights.retry,
        "desired": {
            key: spec[key]
            for key in ("version", "runID", "source", "digest", "rollbackTo")
            if key in spec
        },
        "suspended": weights.spec.suspend,
        "observed": weights.is_observed,
        "phase": status.phase,
        "appliedVersion": status.applied_version,
    }


def _dump(part: Resource) -> dict[str, Any]:
    return part.model_dump(mode="json", by_alias=True, exclude_none=True)
