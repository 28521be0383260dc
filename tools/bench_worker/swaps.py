"""Measures how long a swap of weights takes, in stock vLLM alone and in the worker."""

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
    """Stage, pause, load and resume. Returns: the seconds of each, as the worker reports them.

    Args:
        server: A worker that serves.
        version: Label of the weights.
        path: Their directory.
        drop_cache: Drop the files from the page cache before the pause, as if other files had been read.
    """
    stage(server, version, path)
    if drop_cache:
        drop_from_cache(path)
    return swap_staged(server, version)


def swap_staged(server: Server, version: str) -> dict[str, float]:
    """Pause, load and resume. Returns: as of `swap`."""
    call(server, "pause", mode="keep", lease_seconds=600)
    call(server, "load", version=version)
    timings = call(server, "resume", version=version)["timings"]
    return {key: float(timings[key]) for key in timings if key.endswith("_seconds")}


def stage(server: Server, version: str, path: Path) -> str:
    """Stage a version. Returns: how a load will copy its bytes, in the worker's words."""
    staged = call(server, "stage", version=version, source={"path": str(path)})["staged"]
    return str(staged["copies"])


def call(server: Server, name: str, **body: Any) -> dict[str, Any]:
    """Make one call of the worker protocol. Returns: the document of the reply."""
    body["epoch"] = {"term": 1, "sequence": next(_sequences)}
    reply = server.admin.put(f"/v1/worker/{name}", json=body)
    reply.raise_for_status()
    return dict(reply.json())


def drop_from_cache(path: Path) -> None:
    """Drop a directory's files from the page cache. It needs no root."""
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
