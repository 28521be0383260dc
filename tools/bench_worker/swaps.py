"""How long weights take to be exchanged: bare in stock vLLM, and as our worker does it."""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import Any

from bench_worker.servers import Server

_sequences = itertools.count(1)


def bare_reload(server: Server, path: Path) -> float:
    """Seconds of `reload_weights` alone, in paused stock vLLM."""
    server.admin.post("/pause?mode=keep").raise_for_status()
    began = time.perf_counter()
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(path)}}
    server.admin.post("/collective_rpc", json=body).raise_for_status()
    seconds = time.perf_counter() - began
    server.admin.post("/resume").raise_for_status()
    return seconds


def admit(server: Server) -> float:
    """Seconds that the latch adds: from joining to being served."""
    began = time.perf_counter()
    call(server, "admit", version="base")
    while server.admin.get("/readyz").status_code != 200:
        pass
    return time.perf_counter() - began


def swap(server: Server, version: str, path: Path, *, drop_cache: bool) -> dict[str, float]:
    """Stage, pause, load, resume; seconds of each, as the worker tells them.

    Args:
        server: Our worker, serving.
        version: Label of the weights.
        path: Their directory.
        drop_cache: Forget what is cached of the files before the pause, as if others had been read.
    """
    call(server, "stage", version=version, source={"path": str(path)})
    if drop_cache:
        forget(path)
    call(server, "pause", mode="keep", lease_seconds=600)
    call(server, "load", version=version)
    timings = call(server, "resume", version=version)["timings"]
    return {key: float(timings[key]) for key in timings if key.endswith("_seconds")}


def call(server: Server, name: str, **body: Any) -> dict[str, Any]:
    """One call of the protocol."""
    body["epoch"] = {"term": 1, "sequence": next(_sequences)}
    reply = server.admin.put(f"/v1/worker/{name}", json=body)
    reply.raise_for_status()
    return dict(reply.json())


def forget(path: Path) -> None:
    """Drop a directory's files from the page cache; no right of root's is needed for that."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def size_of(path: Path) -> int:
    """Bytes of a checkpoint's weights."""
    return sum(file.stat().st_size for file in path.glob("*.safetensors"))
