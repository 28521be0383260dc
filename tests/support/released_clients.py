"""The process of trainers' HTTP clients, as they were released (`tests/clients/trainers`)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from tests.support.environments import (
    REPOSITORY,
    engine_environment,
    trainers_packages,
    worker_python,
)

PROGRAM = REPOSITORY / "tests" / "clients" / "trainers" / "released_clients.py"


class ReleasedClients:
    """One process, which has imported all of them.

    Args:
        address: The address of the fleet, with a key in the path.
        weights: Folder of checkpoints.
        placed: The command where the process runs; by default it runs here.
    """

    def __init__(
        self, address: str, weights: Path, placed: Callable[[list[str]], list[str]] = list
    ) -> None:
        environment = {"PYTHONPATH": trainers_packages(), "TRL_EXPERIMENTAL_SILENCE": "1"}
        self._process = subprocess.Popen(
            placed([worker_python(), str(PROGRAM), address, str(weights)]),
            env={**engine_environment(), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        self._read()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._process.stdout.close()

    def outcome(self, act: str, **asked: Any) -> dict[str, Any]:
        """`done` with the result, or `error` with the status of the fleet's answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"act": act, **asked}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def must(self, act: str, **asked: Any) -> Any:
        """The result of an act that has to succeed."""
        found = self.outcome(act, **asked)
        assert "done" in found, found["trace"]
        return found["done"]

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found
