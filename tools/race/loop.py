"""The hand-written loop: stock vLLM in a StatefulSet, and the calls that a training script makes.

Each update pauses all workers, reloads their weights and resumes them. A worker that does not answer
is logged. Replies get the version that the script had finished when the request was sent, since vLLM
does not say which weights made a token.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx

from stack.fleets import CPU_ENGINE, MODEL_NAME, WEIGHTS_ROOT
from stack.volumes import CLAIM

PORT = 8000


def manifests(name: str, image: str, replicas: int) -> list[dict[str, Any]]:
    """A StatefulSet of stock vLLM with a Service, on the weights of the training's start."""
    labels = {"app": name}
    command = ["python3", "-m", "vllm.entrypoints.openai.api_server", "--enable-scale-out"]
    model = [f"--model={WEIGHTS_ROOT}/base", f"--served-model-name={MODEL_NAME}"]
    environment = [
        *CPU_ENGINE["env"],
        {"name": "VLLM_SERVER_DEV_MODE", "value": "1"},  # has `/collective_rpc`
        {"name": "VLLM_PLUGINS", "value": ""},
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "HOME", "value": "/tmp"},  # noqa: S108 - the pod's own
    ]
    container = {
        "name": "vllm",
        "image": image,
        "command": [*command, *model, *CPU_ENGINE["args"]],
        "env": environment,
        "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "100m"}},
        "readinessProbe": {"httpGet": {"path": "/health", "port": PORT}, "periodSeconds": 1},
        "volumeMounts": [
            {"name": "weights", "mountPath": WEIGHTS_ROOT, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108 - the engine's
        ],
    }
    spec = {
        "enableServiceLinks": False,
        "securityContext": {"runAsUser": 1000, "runAsNonRoot": True},
        "containers": [container],
        "volumes": [
            {"name": "weights", "persistentVolumeClaim": {"claimName": CLAIM}},
            {"name": "tmp", "emptyDir": {}},
            {"name": "shm", "emptyDir": {"medium": "Memory"}},
        ],
    }
    service = {"selector": labels, "ports": [{"port": PORT}]}
    workers = {
        "replicas": replicas,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": spec},
    }
    metadata = {"name": name}
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": service},
        {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": metadata, "spec": workers},
    ]


@dataclass
class Loop:
    """The script.

    Fields:
        urls: of the workers.
        loaded: worker → version that its engine holds, as far as its answers tell.
        version: the one that the last finished update had. Clients label replies with it.
        log: the errors that it met.
    """

    urls: dict[str, str]
    loaded: dict[str, str]
    version: str
    log: list[str]

    async def update(self, version: str) -> None:
        """Bring all workers to a version; those that fail are logged."""
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            calls = (self._swap(http, name, version) for name in self.urls)
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    self.log.append(f"{version}: {type(outcome).__name__}")
        self.version = version

    async def _swap(self, http: httpx.AsyncClient, name: str, version: str) -> None:
        url = self.urls[name]
        (await http.post(f"{url}/pause?mode=wait")).raise_for_status()
        path = f"{WEIGHTS_ROOT}/step_{version}"
        call = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        (await http.post(f"{url}/collective_rpc", json=call)).raise_for_status()
        self.loaded[name] = version
        (await http.post(f"{url}/resume")).raise_for_status()
