"""Builds the objects of a fleet other than its pods: Services, disruption budget, ConfigMap, Secret."""

from __future__ import annotations

from typing import Any

from fleet_operator.core.checkpoint import Checkpoint
from fleet_operator.core.identity import file_digest
from fleet_operator.core.manifests.pods import owner_reference
from fleet_operator.core.observed import FleetObserved
from fleet_operator.core.percentages import unavailable_and_surge
from rlfleet_resources import names


def service(observed: FleetObserved) -> dict[str, Any]:
    """Builds the fleet's endpoint, a Service of the ready workers that are not quarantined."""
    serving = observed.spec.serving
    options = dict(serving.service or {})
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
        "selector": names.endpoint_selector(observed.name),
        "ports": [{"name": "http", "port": serving.port, "targetPort": "http"}],
    }
    return made | {"spec": spec | options}


def headless_service(observed: FleetObserved) -> dict[str, Any]:
    """Builds the Service that gives every worker a DNS name, ready or not, for trainers."""
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
    """Builds the budget that lets node drains evict as many workers at once as a template change may."""
    made = _object(observed, "PodDisruptionBudget", observed.name)
    # A number, since the disruption controller would round a percentage up.
    # Source: Kubernetes, pkg/controller/disruption/disruption.go getExpectedPodCount
    unavailable, _ = unavailable_and_surge(observed.spec.update, observed.spec.replicas)
    spec = {
        # A node drain adds no worker first: with 0 it would never end.
        "maxUnavailable": max(1, unavailable),
        "selector": {"matchLabels": names.fleet_labels(observed.name)},
        # A worker that is not ready has no clients.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    return made | {"apiVersion": "policy/v1", "spec": spec}


def applied_config_map(observed: FleetObserved, applied: Checkpoint) -> dict[str, Any]:
    """Builds the ConfigMap with the weights that a restarted container starts on.

    A worker can start on a directory only. With another source it starts on the model's own weights,
    and loads the applied ones while it joins.
    """
    data = {names.APPLIED_VERSION_KEY: applied.version}
    if applied.source.path is not None:
        data[names.APPLIED_PATH_KEY] = applied.source.path
    if applied.run_id is not None:
        data[names.APPLIED_RUN_ID_KEY] = applied.run_id
    if (digest := file_digest(applied.digest)) is not None:
        data[names.APPLIED_DIGEST_KEY] = digest
    name = names.applied_config_map_name(observed.name)
    return _object(observed, "ConfigMap", name) | {"data": data}


def admin_token_secret(observed: FleetObserved, token: str) -> dict[str, Any]:
    """Builds the Secret with the bearer token of the admin ports. It lasts as long as the fleet."""
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
