"""A hand-written fan-out in its own process, with its own fake workers: the operator's contender."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import envs
from bench_scale import processes
from bench_scale.fakes import FakeFleet

NAMES = {"aiohttp": "one aiohttp session", "httpx": "one httpx client per worker"}


class Contender:
    """One fan-out and its workers. The first rollout, which makes the connections, runs at the start."""

    def __init__(self, client: str, workers: int, *, log: Path) -> None:
        self.client = client
        token = secrets.token_hex(16)
        self.fakes = FakeFleet.standalone(workers, token, log=log)
        self._versions = 0
        words = (f"--client={client}", f"--workers={workers}", f"--port={self.fakes.admin_port}")
        paths = ":".join(
            str(envs.REPOSITORY / p) for p in ("tools", "client", "operator", "worker")
        )
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "bench_scale.fanout", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | {"FAKE_TOKEN": token, "PYTHONPATH": paths},
            )
        self.pid = self._process.pid
        self.roll()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input ends it
        self.fakes.stop()

    def roll(self) -> dict[str, Any]:
        """One rollout: seconds, processor seconds, seconds of each barrier, workers that failed."""
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        self._versions += 1
        self._process.stdin.write(f"{self._versions}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fan-out with {self.client} has ended by itself")
        return dict(json.loads(line))

    def peak_memory_bytes(self) -> int:
        """The most memory that the fan-out has had."""
        return processes.peak_memory_bytes(self.pid)
