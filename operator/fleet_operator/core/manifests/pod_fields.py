"""The fields of a worker pod that a fleet sets as Kubernetes has them: environment, volumes, placement."""

from __future__ import annotations

from typing import Any

from fleet_operator.api.fleet import FleetSpec
from fleet_operator.api.volumes import WeightVolume
from rlfleet_resources import names

_OWN_READ_ONLY = frozenset({"persistentVolumeClaim", "nfs", "csi"})
"""Sources with their own `readOnly`: the node then mounts the volume read-only."""

_STORE = "store-keys"


def pod_fields(spec: FleetSpec, fleet: str) -> dict[str, Any]:
    """The fields of the pod's spec that `spec.pod` sets."""
    fields = {key: value for key, value in spec.pod.to_json().items() if value not in ({}, [])}
    for constraint in fields.get("topologySpreadConstraints", ()):
        constraint.setdefault("labelSelector", {"matchLabels": names.fleet_labels(fleet)})
    return fields


def resources(spec: FleetSpec) -> dict[str, Any]:
    """Resources of the worker container."""
    made = spec.resources.to_json()
    if not made["claims"]:
        del made["claims"]
    return made


def variables(spec: FleetSpec) -> dict[str, Any]:
    """`env` and `envFrom` of the worker container."""
    made: dict[str, Any] = {"env": [*spec.engine.env]}
    if spec.engine.env_from:
        made["envFrom"] = [*spec.engine.env_from]
    return made


def volumes(spec: FleetSpec) -> list[dict[str, Any]]:
    """The pod's volumes with weights."""
    return [_volume(volume) for volume in spec.weights.volumes]


def mounts(spec: FleetSpec) -> list[dict[str, Any]]:
    """The mounts of these volumes in the worker container."""
    return [
        {"name": v.name, "mountPath": v.mount_path, "readOnly": v.read_only}
        for v in spec.weights.volumes
    ]


def store_volumes(spec: FleetSpec) -> list[dict[str, Any]]:
    """The volume with the keys of object stores. The kubelet brings changed keys, without a restart."""
    store = spec.weights.object_store
    if store is None or not store.secret_name:
        return []
    return [{"name": _STORE, "secret": {"secretName": store.secret_name, "defaultMode": 0o444}}]


def store_mounts(spec: FleetSpec, folder: str) -> list[dict[str, Any]]:
    """The mount of this volume in the worker container."""
    return [
        {"name": each["name"], "mountPath": folder, "readOnly": True}
        for each in store_volumes(spec)
    ]


def _volume(volume: WeightVolume) -> dict[str, Any]:
    made = volume.to_json()
    for key in ("mountPath", "readOnly"):
        del made[key]
    for source in _OWN_READ_ONLY & made.keys():
        made[source]["readOnly"] = volume.read_only
    return made
