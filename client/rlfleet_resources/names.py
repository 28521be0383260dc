"""Names of the API group and of every object that the operator makes for a fleet.

Everything about one fleet is found by its labels or derives from its name, so that no object
needs a record of where the others are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

GROUP = "rlfleet.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
FLEET_KIND = "InferenceFleet"
FLEET_PLURAL = "inferencefleets"
WEIGHTS_KIND = "WeightVersion"
WEIGHTS_PLURAL = "weightversions"
PLURALS = {FLEET_KIND: FLEET_PLURAL, WEIGHTS_KIND: WEIGHTS_PLURAL}

FIELD_MANAGER = "rlfleet-operator"
"""Owner of the fields that the operator applies (server-side apply)."""

LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_NAME = "app.kubernetes.io/name"
LABEL_FLEET = f"{GROUP}/fleet"
LABEL_ORDINAL = f"{GROUP}/ordinal"
LABEL_REVISION = f"{GROUP}/revision"
LABEL_ROUTER = f"{GROUP}/router"
"""On the pods of a router: its fleet. They have no label of the fleet's workers."""
LABEL_TRAFFIC = f"{GROUP}/traffic"
"""`allowed`, `draining` for a worker that is to go, or `fenced` for a quarantined one, whose worker
cannot be called. The fleet's Service selects on it.
"""

ANNOTATION_QUARANTINE = f"{GROUP}/quarantine"
"""Why a worker was taken out of service, as JSON; it survives a restart of the operator."""

ANNOTATION_DRAIN = f"{GROUP}/drain"
"""On a worker that will be removed: the start of its drain, and the reason, as JSON. The operator
deletes the worker when its requests have ended. Without the annotation the worker serves again.
"""

ANNOTATION_RESTARTED_AT = f"{GROUP}/restarted-at"
"""On a worker: `spec.update.restartedAt` of its fleet when the worker was created."""

ANNOTATION_RETRY = f"{GROUP}/retry"
"""On a WeightVersion: with a new value the operator tries an abandoned version once more."""
MAX_RETRY_CHARACTERS = 100
"""A longer value of that annotation is known by its digest."""

ANNOTATION_TRACEPARENT = f"{GROUP}/traceparent"
"""On a WeightVersion: the span of the trainer in which a rollout is traced (W3C Trace Context)."""
MAX_TRACEPARENT_CHARACTERS = 128
"""The part of that annotation that is read: a valid value has 55."""
MAX_UID_CHARACTERS = 64
"""The part of an owner's uid that is read: those of the API server have 36."""

MANAGED_BY = "rlfleet"
APP_NAME = "rlfleet-worker"
ROUTER_APP_NAME = "rlfleet-router"
TRAFFIC_ALLOWED = "allowed"
TRAFFIC_FENCED = "fenced"
TRAFFIC_DRAINING = "draining"

WORKER_CONTAINER = "worker"
ADMIN_TOKEN_KEY = "token"  # noqa: S105 - the name of a key, not a secret
APPLIED_VERSION_KEY = "version"
APPLIED_PATH_KEY = "path"
APPLIED_RUN_ID_KEY = "runID"
APPLIED_DIGEST_KEY = "digest"

CHILD_SUFFIXES = ("-workers", "-admin-token", "-applied", "-router")
"""Suffixes of the names of a fleet's children. No fleet's own name may end with one: otherwise the
children of two fleets could have the same name."""


MOST_ORDINALS = 20_000
"""The CRD allows 10,000 replicas, and `maxSurge` as many more."""


def heartbeat_name(operator: str) -> str:
    """The name of the Lease by which an operator shows its life in a namespace of its fleets.

    `operator`: `namespace/name` of its own Lease.
    """
    namespace, _, name = operator.partition("/")
    return f"{name}.{namespace}"


def pod_name(fleet: str, ordinal: int) -> str:
    """Stable name of one worker; trainers list these as admin URLs, in rank order."""
    return f"{fleet}-{ordinal}"


def worker_of(metadata: Mapping[str, Any]) -> tuple[str, int] | None:
    """The fleet and the ordinal of a worker, by the metadata of its pod; None for any other pod.

    Labels prove nothing, since other users of the namespace can set and remove them. A worker also has the
    name of its fleet and ordinal. No fleet gives a worker an ordinal of `MOST_ORDINALS` or more, and what has
    one address for each ordinal stays small.
    """
    labels = metadata.get("labels") or {}
    fleet, ordinal = labels.get(LABEL_FLEET, ""), labels.get(LABEL_ORDINAL, "")
    if not (ordinal.isascii() and ordinal.isdecimal()):
        return None
    number = int(ordinal)
    is_one = number < MOST_ORDINALS and metadata["name"] == pod_name(fleet, number)
    return (fleet, number) if is_one else None


def headless_service_name(fleet: str) -> str:
    """Service that gives every worker a name of its own in DNS, ready or not."""
    return f"{fleet}-workers"


def admin_token_secret_name(fleet: str) -> str:
    """Secret that holds the bearer token of the workers' admin ports."""
    return f"{fleet}-admin-token"


def applied_config_map_name(fleet: str) -> str:
    """ConfigMap that tells a (re)starting worker which version the fleet serves."""
    return f"{fleet}-applied"


def retry_mark(value: str) -> str:
    """The value of the retry annotation as statuses repeat it: a user may write a quarter of a megabyte."""
    if len(value) <= MAX_RETRY_CHARACTERS:
        return value
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def writer_of_version(managed_fields: Iterable[Mapping[str, Any]]) -> str:
    """The manager that owns `spec.version` of a WeightVersion; empty if several do, or none is known.

    Source: Kubernetes meta/v1 ManagedFieldsEntry and FieldsV1.
    """
    owners = {
        str(entry.get("manager", ""))
        for entry in managed_fields
        if "f:version" in (entry.get("fieldsV1") or {}).get("f:spec", {})
    }
    return owners.pop() if len(owners) == 1 else ""


def controller_uid(metadata: Mapping[str, Any]) -> str:
    """The uid of the controller that owns an object; empty without one. A user may write any text there."""
    owners = metadata.get("ownerReferences") or ()
    uid = next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
    return uid[:MAX_UID_CHARACTERS]


def router_name(fleet: str) -> str:
    """Deployment and Service of the fleet's router."""
    return f"{fleet}-router"


def fleet_labels(fleet: str) -> dict[str, str]:
    """Labels that every object of a fleet carries."""
    return {LABEL_MANAGED_BY: MANAGED_BY, LABEL_NAME: APP_NAME, LABEL_FLEET: fleet}


def router_labels(fleet: str) -> dict[str, str]:
    """Labels of the objects of a fleet's router."""
    return fleet_labels(fleet) | {LABEL_NAME: ROUTER_APP_NAME}


def fleet_selector(fleet: str) -> str:
    """Label selector of a fleet's pods, in the API's string form."""
    return f"{LABEL_MANAGED_BY}={MANAGED_BY},{LABEL_FLEET}={fleet}"


def endpoint_selector(fleet: str) -> dict[str, str]:
    """Selector of the fleet's endpoint: its workers that are neither quarantined nor about to go."""
    return fleet_labels(fleet) | {LABEL_TRAFFIC: TRAFFIC_ALLOWED}


def router_selector(fleet: str) -> dict[str, str]:
    """Labels of the router's pods. No worker has them: routers are not workers of the fleet."""
    return {LABEL_NAME: ROUTER_APP_NAME, LABEL_ROUTER: fleet}


def endpoint_url(fleet: str, namespace: str, port: int, scheme: str = "http") -> str:
    """Address of the fleet inside the cluster."""
    return f"{scheme}://{fleet}.{namespace}.svc:{port}"


def address_url(ip: str | None, port: int, scheme: str = "http") -> str:
    """URL of a port of a pod, whose address may be of either family."""
    return f"{scheme}://[{ip}]:{port}" if ip and ":" in ip else f"{scheme}://{ip}:{port}"
