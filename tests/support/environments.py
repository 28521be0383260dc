"""The interpreter with vLLM in it, and our own package as an image would hold it.

Both are named by the environment (`make` sets it); otherwise they are made, once.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@functools.cache
def worker_python() -> str:
    """The worker environment's interpreter."""
    if named := os.environ.get("RLFLEET_WORKER_PYTHON"):
        return named
    import envs  # noqa: PLC0415 - makes environments; only needed here

    return str(envs.interpreter_of("worker"))


@functools.cache
def client_python(environment: str) -> str:
    """The interpreter of one of the environments of trainers' clients."""
    import envs  # noqa: PLC0415 - makes environments; only needed here

    return str(envs.interpreter_of(environment))


@functools.cache
def trainers_packages(environment: str = "trainers") -> str:
    """Folder with the packages of trainers, for the path of the worker's interpreter."""
    (found,) = (Path(client_python(environment)).parents[1] / "lib").glob("python3*/site-packages")
    return str(found)


@functools.cache
def app_folder() -> str:
    """Folder with our unpacked wheel: modules and metadata, by which vLLM finds the plugin."""
    if named := os.environ.get("RLFLEET_APP"):
        return named
    import envs  # noqa: PLC0415 - builds the wheel; only needed here

    return str(envs.app_folder())


def engine_environment() -> dict[str, str]:
    """Environment for vLLM on a machine that several of them share.

    The first group belongs to machines like ours, the second to the way tests and demo run
    (facts: without TORCHDYNAMO_DISABLE the first request with log-probabilities compiles for 12 s).
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("RLFLEET_", "VLLM_", "HF_"))}
    return kept | {
        "PYTHONPATH": app_folder(),
        "PYTHONSAFEPATH": "1",
        "TZ": "UTC",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "TORCHDYNAMO_DISABLE": "1",
    }


ENGINE_ARGUMENTS = (
    "--enforce-eager",
    "--kv-cache-memory-bytes=67108864",
    "--block-size=32",
    "--dtype=bfloat16",
    "--max-model-len=4096",
    "--max-num-seqs=16",
)
"""Flags of `vllm serve` with which a tiny model starts in 13 s and takes 1.1 GiB."""
