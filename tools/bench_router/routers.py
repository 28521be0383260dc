"""The real `vllm-router`, with the arguments of the operator's Deployment."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

import envs
from fleet_operator.api.router import Router, RouterPolicy
from fleet_operator.core.manifests.router import arguments
from free_ports import free_port

_START_SECONDS = 150.0


@contextmanager
def router(policy: RouterPolicy, workers: Sequence[str], folder: Path) -> Iterator[str]:
    """A router in front of these workers, until the block ends. Returns: its URL.

    Errors: TimeoutError with its log.
    """
    port = free_port()
    given = arguments(Router(image="none", policy=policy), list(workers), port)
    for flag, value in (
        ("--host", "127.0.0.1"),
        ("--prometheus-host", "127.0.0.1"),
        ("--prometheus-port", str(free_port())),  # several routers run at once
    ):
        given[given.index(flag) + 1] = value
    program = str(envs.interpreter_of("router").with_name("vllm-router"))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    log = folder / f"{policy}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen([program, *given], stdout=sink, stderr=sink, env=environment)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait(url, len(workers), log)
        yield url
    finally:
        process.kill()
        process.wait()


def _wait(url: str, workers: int, log: Path) -> None:
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/readiness").json().get("healthy_workers") == workers:
                return
        except (httpx.TransportError, ValueError):
            pass
        time.sleep(0.2)
    raise TimeoutError(f"the router does not see its workers:\n{log.read_text()[-3000:]}")
