"""Worker pods as the verbs show them: pure, read off the pods and the status of their fleet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rlfleet.resources import InferenceFleet
from rlfleet_resources.base import Resource
from rlfleet_resources.names import (
    ANNOTATION_DRAIN,
    ANNOTATION_QUARANTINE,
    LABEL_REVISION,
    LABEL_TRAFFIC,
    WORKER_CONTAINER,
)

MANAGED = "app.kubernetes.io/managed-by=rlfleet"
OPERATOR = "app.kubernetes.io/name=rlfleet-operator"


class PodView(Resource):
    """One worker pod at a glance.

    Fields:
        status: the phase, or what the pod waits for or ends with, as in `kubectl get pods`.
        version: in the worker's engine; None where the status of the fleet does not tell.
        traffic: `allowed`, `draining` or `fenced`.
        revision: hash of the template that the pod was made from.
    """

    name: str
    ready: bool
    status: str
    version: str | None
    restarts: int
    node: str
    ip: str
    traffic: str
    revision: str
    age_seconds: float | None


def pod_view(pod: Mapping[str, Any], fleet: InferenceFleet, now: datetime) -> PodView:
    """A pod as the verbs show it. Source: Kubernetes core/v1 Pod."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    labels = metadata.get("labels") or {}
    worker = worker_status(pod)
    ready = any(
        c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ()
    )
    created = metadata.get("creationTimestamp")
    age = (now - datetime.fromisoformat(created)).total_seconds() if created else None
    return PodView(
        name=metadata["name"],
        ready=ready,
        status=_status(metadata, status, worker),
        version=_version(metadata["name"], fleet, ready=ready),
        restarts=worker.get("restartCount", 0),
        node=(pod.get("spec") or {}).get("nodeName") or "",
        ip=status.get("podIP") or "",
        traffic=labels.get(LABEL_TRAFFIC, ""),
        revision=labels.get(LABEL_REVISION, ""),
        age_seconds=None if age is None else max(0.0, age),
    )


def metrics_port(pod: Mapping[str, Any]) -> int | None:
    """The port of a worker's metrics; None for other pods."""
    ports = worker_container(pod).get("ports") or ()
    return next((p["containerPort"] for p in ports if p.get("name") == "metrics"), None)


def by_number(pod: Mapping[str, Any]) -> tuple[int, str]:
    """The place of a pod in a list; see `number_in`."""
    return number_in(str(pod["metadata"]["name"]))


def number_in(name: str) -> tuple[int, str]:
    """The place of a pod with this name: by the number at its end, which a user cannot change."""
    number = name.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdecimal() else 0, name


def worker_status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The report of a pod about its worker's container; empty before it has one."""
    return _of_worker((pod.get("status") or {}).get("containerStatuses"))


def worker_container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """The worker's container as the pod names it; empty in other pods."""
    return _of_worker(pod["spec"]["containers"])


def _of_worker(containers: Sequence[Mapping[str, Any]] | None) -> Mapping[str, Any]:
    return next((c for c in containers or () if c["name"] == WORKER_CONTAINER), {})


def _status(
    metadata: Mapping[str, Any], status: Mapping[str, Any], worker: Mapping[str, Any]
) -> str:
    """One word: what the operator has marked comes before what the kubelet reports."""
    annotations = metadata.get("annotations") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if ANNOTATION_QUARANTINE in annotations:
        return "Quarantined"
    if ANNOTATION_DRAIN in annotations:
        return "Draining"
    for container in (*(status.get("initContainerStatuses") or ()), worker):
        state = container.get("state") or {}
        for kind in ("waiting", "terminated"):
            reason = (state.get(kind) or {}).get("reason")
            if reason and reason != "Completed":
                return str(reason)
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("reason") or "Unscheduled")
    return str(status.get("reason") or status.get("phase") or "Pending")


def _version(pod: str, fleet: InferenceFleet, *, ready: bool) -> str | None:
    """The served version. Pods do not name it: only the status of the fleet does."""
    for one in fleet.status.laggards:
        if one.pod == pod:
            return one.version
    versions = {one.version for one in fleet.status.versions}
    return versions.pop() if ready and len(versions) == 1 else None
