"""The real RL API in a process of its own, and a trainer that uses it."""

from __future__ import annotations

import secrets
import time
import urllib.request
from pathlib import Path
from typing import Self

from bench_scale import processes
from free_ports import free_port

_START_SECONDS = 60.0


class RlApi:
    """One process with a static key for one fleet.

    Fields:
        root: URL of the fleet.
        key: permits every request for it.
    """

    def __init__(self, kubeconfig: Path, namespace: str, fleet: str, folder: Path) -> None:
        keys = folder / f"keys-{namespace}"
        keys.mkdir()
        self.key = secrets.token_hex(16)
        (keys / f"{namespace}.{fleet}").write_text(self.key)
        port = free_port()
        self.root = f"http://127.0.0.1:{port}/fleets/{namespace}/{fleet}"
        self._ready = f"http://127.0.0.1:{port}/readyz"
        self._log = folder / "rl-api.log"
        options = [
            *("--host=127.0.0.1", f"--port={port}", f"--keys-folder={keys}", "--drain-seconds=0"),
            *(f"--external-fleets={namespace}/{fleet}", "--requests-per-second=100000"),
        ]
        self._process = processes.start("fleet_api", *options, kubeconfig=kubeconfig, log=self._log)

    def __enter__(self) -> Self:
        until = time.monotonic() + _START_SECONDS
        while not self._is_ready():
            if time.monotonic() > until or self._process.poll() is not None:
                self.__exit__()
                raise TimeoutError(f"the RL API does not start:\n{self._log.read_text()[-3000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        processes.end(self._process)

    def cpu_seconds(self) -> float:
        """Processor time until now."""
        return processes.cpu_seconds(self._process.pid)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self._ready, timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False
