"""A trainer's pod: the worker's image, the checkpoints to write, and the rights of one trainer."""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import envs
from stack.fleets import WEIGHTS_ROOT

CODE = "/trainer"
CLIENT = "rlfleet.zip"
"""Among the files in `CODE`: images of workers hold vLLM and its packages, but not the client."""


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
        image: The worker's.
        volume: Where checkpoints are written, as a volume of a pod without its name.
        files: In `CODE`, besides the client.
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
    code["binaryData"] = {CLIENT: base64.b64encode(client_packages()).decode()}
    return [code, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]


_COMMAND_LINE = envs.REPOSITORY / "client/rlfleet/cli"


def client_packages() -> bytes:
    """The packages that trainers import, without the command line."""
    root = envs.REPOSITORY / "client"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(root.glob("rlfleet*/**/*.py")):
            if _COMMAND_LINE not in file.parents:
                archive.write(file, file.relative_to(root))
    return packed.getvalue()
