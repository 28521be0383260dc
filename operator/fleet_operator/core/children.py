"""The objects beside the pods that a fleet owns: Services, and where a restarting worker reads
what the fleet serves.
"""

from __future__ import annotations

from typing import Any

from fleet_operator.api import names
from fleet_operator.api.serving import ServiceOptions
from fleet_operator.core.amounts import unavailable_and_surge
from fleet_operator.core.observed import FleetObserved, Target
from fleet_operator.core.pods import owner_reference


def service(observed: FleetObserved) -> dict[str, Any]:
    """The fleet's endpoint: ready workers that are not quarantined."""
    serving = observed.spec.serving
    options = (serving.service or ServiceOptions()).to_json()
    made = _object(observed, "Service", observed.name)
    metadata = made["metadata"]
    metadata["labels"] = options.pop("labels", {}) | metadata["labels"]
    if annotations := options.pop("annotations", {}):
        metadata["annotations"] = annotations
    timeout_seconds = options.pop("sessionAffinityTimeoutSeconds", None)
    if timeout_seconds is not None:
        options["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": timeout_seconds}}
    spec = {
        "type": "ClusterIP",
        "selector": names.fleet_labels(observed.name)
        | {names.LABEL_TRAFFIC: names.TRAFFIC_ALLOWED},
        "ports": [{"name": "http", "port": serving.port, "targetPort": "http"}],
    }
    return made | {"spec": spec | options}


def headless_service(observed: FleetObserved) -> dict[str, Any]:
    """A name in DNS for every worker, ready or not, for trainers that address each one."""
    serving = observed.spec.serving
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.fleet_labels(observed.name),
        "ports": [
            {"name": "http", "port": serving.port, "targetPort": "http"},
            {"name": "admin", "port": serving.admin_port, "targetPort": "admin"},
            {"name": "metrics", "port": serving.metrics_port, "targetPort": "metrics"},
        ],
    }
    name = names.headless_service_name(observed.name)
    return _object(observed, "Service", name) | {"spec": spec}


def disruption_budget(observed: FleetObserved) -> dict[str, Any]:
    """Keeps drains of nodes from taking more workers away than a template change may."""
    made = _object(observed, "PodDisruptionBudget", observed.name)
    # The disruption controller would round a share up.
    # Source: kubernetes/pkg/controller/disruption/disruption.go getExpectedPodCount
    unavailable, _ = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    spec = {
        # A drain of a node brings no other worker first: with 0 it would never end.
        "maxUnavailable": max(1, unavailable),
        "selector": {"matchLabels": names.fleet_labels(observed.name)},
        # A worker that is not ready serves nobody: evicting it disturbs nobody.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return made | {"apiVersion": "policy/v1", "spec": spec}


def applied_config_map(observed: FleetObserved, applied: Target) -> dict[str, Any]:
    """What a worker starts on when its container starts again.

    Only sources that are a directory can be started on; with another one a worker starts on the
    model's own weights and is brought up as a joiner.
    """
    data = {names.APPLIED_VERSION_KEY: applied.version}
    if applied.source.path is not None:
        data[names.APPLIED_PATH_KEY] = applied.source.path
    if applied.run_id is not None:
        data[names.APPLIED_RUN_ID_KEY] = applied.run_id
    if applied.digest is not None:
        data[names.APPLIED_DIGEST_KEY] = applied.digest
    name = names.applied_config_map_name(observed.name)
    return _object(observed, "ConfigMap", name) | {"data": data}


def admin_token_secret(observed: FleetObserved, token: str) -> dict[str, Any]:
    """The bearer token of the admin ports; made once, kept for the life of the fleet."""
    name = names.admin_token_secret_name(observed.name)
    made = _object(observed, "Secret", name)
    return made | {"type": "Opaque", "stringData": {names.ADMIN_TOKEN_KEY: token}}


def _object(observed: FleetObserved, kind: str, name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": observed.namespace,
            "labels": names.fleet_labels(observed.name),
            "ownerReferences": [owner_reference(observed)],
        },
    }
