"""Manifests of small fleets that run on CPU."""

from __future__ import annotations

from typing import Any

from stack.images import MODEL_CACHE
from stack.volumes import CLAIM

MODEL_NAME = "tiny-qwen3"
WEIGHTS_ROOT = "/weights"

CPU_ENGINE: dict[str, Any] = {
    "args": [
        "--dtype=bfloat16",
        "--max-model-len=2048",
        "--max-num-seqs=16",
        # Whole GiB are the smallest unit of vLLM's own setting for CPUs, and cost seconds.
        "--kv-cache-memory-bytes=67108864",
        "--block-size=32",
        # Compiling takes 20 s at start and again at the first request with logprobs.
        "--enforce-eager",
    ],
    "env": [
        {"name": "TORCHDYNAMO_DISABLE", "value": "1"},
        # Several engines share two cores.
        {"name": "OMP_NUM_THREADS", "value": "1"},
        {"name": "VLLM_CPU_OMP_THREADS_BIND", "value": "nobind"},
        # Nothing is spoken to outside of the pod.
        {"name": "VLLM_HOST_IP", "value": "127.0.0.1"},
        {"name": "GLOO_SOCKET_IFNAME", "value": "lo"},
        {"name": "VLLM_CACHE_ROOT", "value": MODEL_CACHE},
        {"name": "VLLM_LOGGING_LEVEL", "value": "WARNING"},
    ],
}


def fleet_manifest(
    name: str, *, replicas: int, rollout: dict[str, Any] | None = None
) -> dict[str, Any]:
    """An InferenceFleet of tiny models on the weights volume."""
    return {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "InferenceFleet",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "model": {"name": MODEL_NAME, "source": {"path": f"{WEIGHTS_ROOT}/base"}},
            "engine": CPU_ENGINE,
            "resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "100m"}},
            "weights": {
                "roots": [WEIGHTS_ROOT],
                "volumes": [
                    {
                        "name": "weights",
                        "mountPath": WEIGHTS_ROOT,
                        "persistentVolumeClaim": {"claimName": CLAIM},
                    }
                ],
            },
            "rollout": rollout or {},
        },
    }


def for_a_cpu(manifest: dict[str, Any]) -> dict[str, Any]:
    """A fleet's manifest with what a tiny model on a CPU needs; changed in place."""
    engine = manifest["spec"].setdefault("engine", {})
    for field, values in CPU_ENGINE.items():
        engine[field] = [*engine.get(field, []), *values]
    limits = manifest["spec"].setdefault("resources", {}).setdefault("limits", {})
    limits.setdefault("memory", "2Gi")
    return manifest


def weights_manifest(name: str, *, fleet: str, version: str) -> dict[str, Any]:
    """A WeightVersion whose source follows its version."""
    return {
        "apiVersion": "rlfleet.dev/v1alpha1",
        "kind": "WeightVersion",
        "metadata": {"name": name},
        "spec": {
            "fleetRef": {"name": fleet},
            "version": version,
            "source": {"path": f"{WEIGHTS_ROOT}/step_{{version}}"},
        },
    }
