"""A trainer's pod: the worker's image, the checkpoints to write, and the rights of one trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stack.fleets import WEIGHTS_ROOT

CODE = "/trainer"


def trainer_account(name: str, weights: Sequence[str], fleet: str) -> list[dict[str, Any]]:
    """An account with the rights of `docs/reference/rbac.md`: to these WeightVersions of a fleet."""
    metadata, group = {"name": name}, "rbac.authorization.k8s.io"
    rules = [
        {
            "apiGroups": ["rlfleet.dev"],
            "resources": ["weightversions"],
            "resourceNames": list(weights),
            "verbs": ["get", "list", "watch", "patch"],
        },
        {
            "apiGroups": ["rlfleet.dev"],
            "resources": ["inferencefleets"],
            "resourceNames": [fleet],
            "verbs": ["get"],
        },
    ]
    role = {"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": rules}
    binding = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name}],
    }
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    return [account, role, binding]


def trainer_pod(
    name: str, image: str, volume: Mapping[str, Any], files: Mapping[str, str], user: int = 1000
) -> list[dict[str, Any]]:
    """A pod that waits for `kubectl exec`, with the account of its name, and a ConfigMap.

    Args:
        name: The name of both.
        image: The worker's, which holds the client, too.
        volume: Where checkpoints are written, as a volume of a pod without its name.
        files: In `CODE`.
        user: Of its processes. Workers run as 1000.
    """
    metadata = {"name": name}
    container = {
        "name": name,
        "image": image,
        "command": ["python3", "-c", "import signal; signal.pause()"],
        "env": [
            {"name": "WEIGHTS", "value": WEIGHTS_ROOT},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "HF_HUB_OFFLINE", "value": "1"},
        ],
        "volumeMounts": [
            {"name": "weights", "mountPath": WEIGHTS_ROOT},
            {"name": "code", "mountPath": CODE},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    spec = {
        "serviceAccountName": name,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": user != 0,
            "runAsUser": user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": [
            {"name": "weights", **volume},
            {"name": "code", "configMap": {"name": name}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(files)}
    return [code, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]
