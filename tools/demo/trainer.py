"""The trainer: a pod of the worker's image that writes real checkpoints to the shared volume, and a
host that publishes them with plain kubectl, as a training loop would.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from demo.place import NAMESPACE, WEIGHTS, CommandError, Place, apply, kubectl
from stack.fleets import WEIGHTS_ROOT
from stack.volumes import CLAIM

POD = "trainer"
_CODE = "/trainer"


def manifests(image: str) -> list[dict[str, Any]]:
    """The pod, and its two scripts as a ConfigMap."""
    here = Path(__file__).parent
    scripts = {
        "trainer_pod.py": (here / "trainer_pod.py").read_text(),
        "checkpoints.py": (here.parent / "checkpoints.py").read_text(),
    }
    container = {
        "name": POD,
        "image": image,
        # It waits to be spoken to with `kubectl exec`.
        "command": ["python3", "-c", "import signal; signal.pause()"],
        "env": [
            {"name": "WEIGHTS", "value": WEIGHTS_ROOT},
            {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "HF_HUB_OFFLINE", "value": "1"},
        ],
        "volumeMounts": [
            {"name": "weights", "mountPath": WEIGHTS_ROOT},
            {"name": "code", "mountPath": _CODE},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": POD},
        "spec": {
            "enableServiceLinks": False,
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [container],
            "volumes": [
                {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM}},
                {"name": "code", "configMap": {"name": POD}},
                {"name": "tmp", "emptyDir": {}},
            ],
        },
    }
    code = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": POD}, "data": scripts}
    return [code, pod]


class Trainer:
    """Writes checkpoints and publishes them."""

    def __init__(self, place: Place, image: str) -> None:
        self._place = place
        apply(place, manifests(image))
        ready = ("wait", "--for=condition=Ready", f"pod/{POD}", "--timeout=120s")
        if kubectl(place, *ready, check=False).returncode:
            events = kubectl(place, "describe", f"pod/{POD}").stdout.partition("Events:")[2]
            raise CommandError(f"the trainer's pod does not start:{events}")
        command = ["kubectl", "-n", NAMESPACE, "exec", "-i", POD, "--"]
        self._shell = subprocess.Popen(
            [*command, "python3", f"{_CODE}/trainer_pod.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=place.environment,
        )

    def write(self, number: int, *, truncated: bool = False) -> None:
        """Write the checkpoint of one step; blocks until it lies on the volume."""
        assert self._shell.stdin is not None  # noqa: S101 - for the type
        assert self._shell.stdout is not None  # noqa: S101 - for the type
        self._shell.stdin.write(f"{'truncated' if truncated else 'step'} {number}\n")
        self._shell.stdin.flush()
        if self._shell.stdout.readline().strip() != "done":
            raise CommandError(f"the trainer's pod could not write step {number}")

    def publish(self, version: str) -> str:
        """Ask the fleet for a version. Returns: the command, as typed in a shell."""
        patch = json.dumps({"spec": {"version": version}}, separators=(",", ":"))
        kubectl(self._place, "patch", "wv", WEIGHTS, "--type=merge", "-p", patch)
        return f"kubectl patch wv {WEIGHTS} --type=merge -p '{patch}'"

    def close(self) -> None:
        """End the writing process."""
        self._shell.terminate()
        self._shell.wait()
