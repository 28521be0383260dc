"""Development images: our wheel in a few hundred kB, the environments mounted from the machine.

Their entry points, users and paths are those of the Dockerfile; the packages come
read-only from the environments of `tools/envs.py`.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

import envs
from devcluster import Cluster, ImageConfig

OPERATOR_IMAGE = "rlfleet/operator:dev"
WORKER_IMAGE = "rlfleet/worker:dev"
ROUTER_IMAGE = "rlfleet/router:dev"
MODEL_CACHE = "/opt/rlfleet/vllm-cache"
_APP = "/opt/rlfleet/app"
_BIN = "/opt/rlfleet/bin"
# The environment's own scripts name its path on this machine.
_ROUTER = """#!/usr/bin/env python3
from vllm_router.launch_router import main
main()
"""
# vLLM asks a process of its own what a model class can do, which costs 7 s of every start; it
# keeps the answer in its cache folder.
_ASK_MODEL = """
from vllm.model_executor.models.registry import ModelRegistry
ModelRegistry.models["Qwen3ForCausalLM"].inspect_model_cls()
"""


def mounts(*more: str) -> list[tuple[Path, Path]]:
    """Folders that a cluster must give to its containers; makes the environments first.

    Args:
        more: Environments besides those of operator and worker.
    """
    pairs = [(Path("/usr"), Path("/usr"))]
    for name in ("operator", "worker", *more):
        python = envs.interpreter_of(name)
        pairs.append((python.parent.parent, _environment(name)))
        # The interpreter behind the environment must be at its own path.
        base = Path(_base_prefix(python))
        if not base.is_relative_to("/usr") and (base, base) not in pairs:
            pairs.append((base, base))
    return [*pairs, (model_cache(), Path(MODEL_CACHE))]


def model_cache() -> Path:
    """vLLM's cache folder with what it keeps about the model of the demo, made if need be."""
    python = envs.interpreter_of("worker")
    folder = python.parent.parent / "vllm-cache"
    if not folder.exists():
        fresh = folder.with_suffix(f".{os.getpid()}")
        command = [str(python), "-c", _ASK_MODEL]
        environment = dict(os.environ, VLLM_CACHE_ROOT=str(fresh))
        subprocess.run(command, env=environment, capture_output=True, check=True)
        for file in fresh.rglob("*.json"):
            file.chmod(0o644)  # vLLM writes it for its owner alone, and pods run as another user
        with contextlib.suppress(OSError):  # another process was faster
            fresh.rename(folder)
    return folder


def load_images(cluster: Cluster) -> None:
    """Make both images of the working tree and load them on every node."""
    load_image(cluster, OPERATOR_IMAGE, "operator", "fleet_operator")
    load_image(cluster, WORKER_IMAGE, "worker", "fleet_worker")


def load_image(
    cluster: Cluster, image: str, environment: str, module: str, *, app: Path | None = None
) -> None:
    """Make an image and load it on every node.

    Args:
        cluster: Started with `mounts`.
        image: Its name and tag.
        environment: What is mounted into its containers: `operator` or `worker`.
        module: What its entry point runs.
        app: Our own packages; those of the working tree if not given.
    """
    config = ImageConfig(
        entrypoint=("python3", "-m", module),
        environment={
            "PATH": f"{_environment(environment)}/bin:/usr/bin:/bin",
            "PYTHONPATH": _APP,
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TZ": "UTC",
        },
    )
    cluster.load_image(image, {_APP: app or envs.app_folder()}, config)


def load_router(cluster: Cluster) -> None:
    """Make an image of the router and load it on every node. `cluster`: started with its mounts."""
    config = ImageConfig(
        environment={"PATH": f"{_BIN}:{_environment('router')}/bin:/usr/bin:/bin", "TZ": "UTC"}
    )
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "vllm-router"
        script.write_text(_ROUTER)
        script.chmod(0o755)
        cluster.load_image(ROUTER_IMAGE, {f"{_BIN}/vllm-router": script}, config)


def _environment(name: str) -> Path:
    return Path(f"/opt/rlfleet/{name}")


def _base_prefix(python: Path) -> str:
    command = [str(python), "-c", "import sys; print(sys.base_prefix)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
