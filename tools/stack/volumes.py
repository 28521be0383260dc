"""A folder of this machine as a volume that workers mount: a static PersistentVolume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

CLAIM = "weights"


def weights_volume(folder: Path, namespace: str) -> list[dict[str, Any]]:
    """The volume and its claim in this namespace. A volume serves one claim: it is named for it."""
    name = f"weights-{namespace}"
    size = {"storage": "1Gi"}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "capacity": size,
                "accessModes": ["ReadOnlyMany", "ReadWriteMany"],
                "hostPath": {"path": str(folder), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
                "storageClassName": "",
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": size},
            },
        },
    ]
