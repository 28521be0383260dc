"""The rows of `GET v1/rl/workers`, as clients of Dynamo's engine routes read them: pure.

A row with `error` is a worker that cannot be driven yet; its clients ask again. Source: package and
documentation of ai-dynamo 1.6; the clients in prime-rl, which need integers that are not booleans.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fleet_api.fleets import Fleet
from fleet_api.ports import Target
from fleet_worker import protocol
from rlfleet_resources import names

PROTOCOL_VERSION = 1
WORKER_PATH = "/workers/{pod}"
"""Below the fleet's address: calls to one worker."""


Pods = Mapping[int, Mapping[str, Any]]
"""The pods of a fleet's workers by ordinal, in its order, which is the order of ranks in a transfer."""


def workers_of(fleet: Fleet, pods: Pods, address: str | None) -> dict[str, Any]:
    """All workers of a fleet, in order.

    `address`: of the fleet, if its workers are called there; None for the addresses of the pods.
    """
    rows = [_row(fleet, ordinal, pod, address) for ordinal, pod in pods.items()]
    return {"protocol_version": PROTOCOL_VERSION, "namespace": fleet.namespace, "workers": rows}


def _row(fleet: Fleet, ordinal: int, pod: Mapping[str, Any], address: str | None) -> dict[str, Any]:
    metadata, status = pod["metadata"], pod.get("status") or {}
    name = metadata["name"]
    problem = problem_of(pod)
    ready = _is_ready(status) and not problem
    row: dict[str, Any] = {
        "namespace": fleet.namespace,
        "component": fleet.name,
        "endpoint": "rl",
        "instance_id": ordinal,
        "transport": "http",
        "request_plane_url": _address(
            status.get("podIP"), fleet.spec.serving.port, fleet.spec.engine.scheme
        ),
        "model": fleet.spec.model.name,
        "world_size": fleet.world_size,
        "routes": [] if problem else _routes(fleet),
        "pod": name,
        "pod_uid": metadata["uid"],
        "ready": ready,
    } | _weights(fleet, name, ready=ready)
    if row["request_plane_url"] is None:
        del row["request_plane_url"]
    else:
        system = _address(status["podIP"], fleet.spec.serving.admin_port)
        if address is not None:
            system = address + WORKER_PATH.format(pod=name)
        row |= {"system_url": system, "admin_base_url": system}
    if problem:
        row["error"] = problem
    return row


def _routes(fleet: Fleet) -> list[str]:
    """Names below `/engine/` that the worker answers. In an Operator fleet these only read."""
    external = fleet.is_external
    return sorted(protocol.ENGINE_ROUTES if external else protocol.READING_ENGINE_ROUTES)


def _weights(fleet: Fleet, pod: str, *, ready: bool) -> dict[str, Any]:
    """Version, run and digest of the worker's weights, as far as the fleet's status shows them.

    `status.laggards` names workers and their versions, without runs. It has no worker that takes part
    in a running rollout. `status.versions` counts admitted workers, and names none of them.
    """
    lagging = next((one for one in fleet.status.laggards if one.pod == pod), None)
    if lagging is not None:
        found = {"weight_version": lagging.version, "lagging": lagging.reason}
    elif ready and len(fleet.status.versions) == 1:
        (served,) = fleet.status.versions
        found = {
            "weight_version": served.version,
            "weight_run_id": served.run_id,
            "weight_digest": served.digest,
        }
    else:
        return {}
    return {key: value for key, value in found.items() if value is not None}


def targets_of(fleet: Fleet, pods: Pods) -> list[Target]:
    """The workers that can be called, in order."""
    found = []
    for pod in pods.values():
        url = _address((pod.get("status") or {}).get("podIP"), fleet.spec.serving.admin_port)
        if url is not None and not problem_of(pod):
            metadata = pod["metadata"]
            found.append(Target(metadata["name"], metadata["uid"], url, fleet.world_size))
    return found


def metrics_addresses(fleet: Fleet, pods: Pods) -> dict[str, str]:
    """Pages of metrics of the workers that have started, by pod and in order."""
    found = {}
    for pod in pods.values():
        address = _address((pod.get("status") or {}).get("podIP"), fleet.spec.serving.metrics_port)
        if address is not None and not problem_of(pod):
            found[pod["metadata"]["name"]] = f"{address}/metrics"
    return found


def problem_of(pod: Mapping[str, Any]) -> str:
    """Why the worker cannot be driven; empty if it can be."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    if "deletionTimestamp" in metadata:
        return "the pod is being deleted"
    if not status.get("podIP"):
        return f"the pod has no address yet (phase {status.get('phase') or 'Pending'})"
    containers = status.get("containerStatuses") or ()
    worker = [c for c in containers if c["name"] == names.WORKER_CONTAINER]
    if not any(container.get("started") for container in worker):
        return "the engine is starting"
    return ""


def _is_ready(status: Mapping[str, Any]) -> bool:
    conditions = status.get("conditions") or ()
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _address(ip: str | None, port: int, scheme: str = "http") -> str | None:
    """The URL of a pod's port. It has the IP address: clients distinguish workers by it, and one of them
    accepts no names.
    """
    return names.address_url(ip, port, scheme) if ip else None
