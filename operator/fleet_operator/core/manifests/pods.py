"""Builds the worker pod of a fleet from its spec.

Restricted by default: non-root, read-only root, no capabilities, no API token. `spec.pod` sets where
pods run. `podOverlay` sets everything else that a site needs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.core.manifests.hardening import hardened_pod
from fleet_operator.core.manifests.overlay import merge
from fleet_operator.core.manifests.pod_fields import (
    pod_fields,
    store_volumes,
    volumes,
)
from fleet_operator.core.manifests.worker_container import worker_container
from fleet_operator.core.observed import FleetObserved
from fleet_worker import protocol
from rlfleet_resources import names

TERMINATION_GRACE_SECONDS = 60
"""Added to the drain timeout, to end the requests that are left, or an engine that hangs."""
LOST_NODE_SECONDS = 60
"""How long a node is lost before its workers are deleted, and recreated on other nodes."""
_OWN_VARIABLES = "RLFLEET_"
_NOT_OVERLAID = ("args", "ports", "readinessProbe", "lifecycle")


def template_of(observed: FleetObserved, default_image: str) -> dict[str, Any]:
    """The template of all workers of a fleet: metadata and spec of a pod.

    Source: Kubernetes core/v1 PodTemplateSpec.
    """
    worker = worker_container(observed, default_image)
    pod: dict[str, Any] = {
        "metadata": _restart_mark(observed.spec),
        "spec": {
            **hardened_pod(),
            "containers": [worker],
            "volumes": _volumes(observed),
        }
        | pod_fields(observed.spec, observed.name),
    }
    merged: dict[str, Any] = merge(pod, observed.spec.pod_overlay.read())
    # Written after the overlay: these tie the worker to its latch.
    merged["spec"]["tolerations"] = _with_lost_nodes(merged["spec"].get("tolerations", []))
    for container in merged["spec"]["containers"]:
        if container["name"] == names.WORKER_CONTAINER:
            container.update({key: worker[key] for key in _NOT_OVERLAID})
            container["env"] = _with_own_variables(container["env"], worker["env"])
    made: dict[str, Any] = json.loads(json.dumps(merged))
    return made


def pods_of(
    observed: FleetObserved, template: Mapping[str, Any], ordinals: Iterable[int], *, revision: str
) -> list[dict[str, Any]]:
    """The manifests of some workers, from a template. They share what is equal in all of them, so do
    not change them.

    The drain timeout is not part of the template: a change of it replaces no worker.

    Source: Kubernetes core/v1 Pod.
    """
    common = _common_pod(observed, template, revision)
    return [_pod_of(observed, common, ordinal) for ordinal in ordinals]


def _pod_of(observed: FleetObserved, common: Mapping[str, Any], ordinal: int) -> dict[str, Any]:
    name = names.pod_name(observed.name, ordinal)
    metadata = common["metadata"]
    labels = metadata["labels"] | {names.LABEL_ORDINAL: str(ordinal)}
    return {
        **common,
        "metadata": metadata | {"name": name, "labels": labels},
        "spec": common["spec"] | {"hostname": name},
    }


def _common_pod(
    observed: FleetObserved, template: Mapping[str, Any], revision: str
) -> dict[str, Any]:
    pod: dict[str, Any] = json.loads(json.dumps({"apiVersion": "v1", "kind": "Pod", **template}))
    # These fields tie the pod to its fleet. They win over the template.
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["namespace"] = observed.namespace
    metadata["labels"] = (
        metadata.get("labels", {})
        | names.fleet_labels(observed.name)
        | {
            names.LABEL_REVISION: revision,
            names.LABEL_TRAFFIC: names.TRAFFIC_ALLOWED,
        }
    )
    metadata["ownerReferences"] = [owner_reference(observed)]
    spec["subdomain"] = names.headless_service_name(observed.name)
    seconds = observed.spec.update.drain_timeout_seconds
    # A grace period of the overlay wins, even if it is too short for a drain.
    spec.setdefault("terminationGracePeriodSeconds", seconds + TERMINATION_GRACE_SECONDS)
    for container in spec["containers"]:
        if container["name"] == names.WORKER_CONTAINER:
            container["env"].append({"name": protocol.ENV_DRAIN_SECONDS, "value": str(seconds)})
    return pod


def _restart_mark(spec: FleetSpec) -> dict[str, Any]:
    """The annotation of `kubectl rollout restart`."""
    restarted_at = spec.update.restarted_at
    return {"annotations": {names.ANNOTATION_RESTARTED_AT: restarted_at}} if restarted_at else {}


def _with_lost_nodes(tolerations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tolerations of the overlay, and ours for a lost node, unless the overlay has them.

    The cluster's default of five minutes is long for a trainer that waits.
    """
    given = {t.get("key") for t in tolerations}
    keys = (f"node.kubernetes.io/{state}" for state in ("not-ready", "unreachable"))
    own = [
        {
            "key": key,
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for key in keys
        if key not in given
    ]
    return [*tolerations, *own]


def owner_reference(observed: FleetObserved) -> dict[str, Any]:
    """The owner reference by which the garbage collector deletes an object with its fleet."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.FLEET_KIND,
        "name": observed.name,
        "uid": observed.uid,
        "controller": True,
    }


def _with_own_variables(
    overlaid: list[dict[str, Any]], own: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The variables of an overlay, except that it cannot change those of the protocol."""
    kept = {name: v for v in own if (name := _name_of(v)).startswith(_OWN_VARIABLES)}
    return [kept.get(_name_of(v), v) for v in overlaid]


def _name_of(variable: dict[str, Any]) -> str:
    """Its name; empty if it has none: the API server refuses the pod, and says so."""
    name = variable.get("name")
    return name if isinstance(name, str) else ""


def _volumes(observed: FleetObserved) -> list[dict[str, Any]]:
    secret = names.admin_token_secret_name(observed.name)
    return [
        *volumes(observed.spec),
        *store_volumes(observed.spec),
        {"name": "admin-token", "secret": {"secretName": secret, "defaultMode": 0o444}},
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
