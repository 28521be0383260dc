"""Builds and starts the program that simulates pods, and reads its records.

`python -m bench_scale.fakes` builds it and prints where it is.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from devcluster import programs
from devcluster.parts import Part
from free_ports import free_port

PART = Part(name="fake-fleet", module=Path(__file__).with_name("fake_fleet"), packages=(".",))
"""A fake kubelet and fake workers in one process; `go build` names it like its module."""
PROGRAM = "fakefleet"
NANO = 1e-9


def standalone_address(number: int) -> str:
    """The address of a worker without a pod, as `addressOf` of the program gives it."""
    return f"127.{64 + number // 62500}.{number // 250 % 250}.{number % 250 + 1}"


def dead_among(workers: int, percent: int) -> int:
    """How many of the first workers draw death, as `strike` of fake-fleet lets them draw."""
    return sum(n * 37 % 100 < percent for n in range(workers))


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The fake workers' record of one version.

    Fields:
        serving: workers that serve it now.
        served_at: when a worker last began to serve it, seconds of the wall clock; 0 if none did.
        marks: kind of call → when the first one arrived, when the last one was done, and how many.
        calls: kind of call → count since the start of the process, all versions.
    """

    workers: int
    serving: int
    served_at: float
    marks: dict[str, tuple[float, float, int]]
    calls: dict[str, int]


class FakeFleet:
    """One process of fake workers."""

    def __init__(self, process: subprocess.Popen[str], admin_port: int, control_port: int) -> None:
        self.admin_port = admin_port
        self.pid = process.pid
        self._process = process
        self._control_port = control_port

    @classmethod
    def of_namespace(cls, kubeconfig: Path, namespace: str, *, log: Path, port: int) -> Self:
        """Fake workers in the pods of a namespace, run by a fake kubelet."""
        chosen = (f"-kubeconfig={kubeconfig}", f"-namespace={namespace}")
        return cls._start(chosen, port, log)

    @classmethod
    def standalone(cls, workers: int, token: str, *, log: Path) -> Self:
        """Fake workers without pods."""
        return cls._start((f"-standalone={workers}", f"-token={token}"), free_port(), log)

    @classmethod
    def _start(cls, chosen: Sequence[str], admin_port: int, log: Path) -> Self:
        program = programs.ensure_part(PART).path(PROGRAM)
        control_port = free_port()
        ports = (f"-admin-port={admin_port}", f"-control-port={control_port}")
        with log.open("ab") as errors:
            process = subprocess.Popen(
                [program, *ports, *chosen], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        assert process.stdout is not None  # noqa: S101 - for the type checker; stdout is a pipe
        if process.stdout.readline().strip() != "ready":
            process.wait()
            process.stdout.close()
            raise RuntimeError(f"fake-fleet did not start: {log.read_text()[-1000:]}")
        return cls(process, admin_port, control_port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def seen(self, version: str) -> Seen:
        """The present record of a version."""
        return self._seen(f"/report?version={version}", seconds=10)

    def wait(self, version: str, count: int, *, seconds: float) -> Seen:
        """The record of a version, as soon as `count` workers serve it.

        Errors:
            TimeoutError: they do not within `seconds`.
        """
        path = f"/wait?version={version}&count={count}&seconds={seconds}"
        seen = self._seen(path, seconds=seconds + 30)
        if seen.serving < count:
            raise TimeoutError(
                f"{seen.serving} of {count} workers serve {version} after {seconds:.0f} s"
            )
        return seen

    def set_faults(
        self, *, dead_percent: int = 0, slow_percent: int = 0, slow_ms: int = 0, call_ms: int = 0
    ) -> None:
        """Let a share of the workers be dead or slow, and let each call take its time."""
        chosen = {"dead_percent": dead_percent, "slow_percent": slow_percent}
        chosen |= {"slow_ms": slow_ms, "call_ms": call_ms}
        self._ask("PUT", "/faults", json.dumps(chosen), seconds=30)

    def _seen(self, path: str, *, seconds: float) -> Seen:
        found: dict[str, Any] = json.loads(self._ask("GET", path, None, seconds=seconds))
        marks = {
            kind: (m["first_ns"] * NANO, m["last_ns"] * NANO, m["count"])
            for kind, m in found["marks"].items()
        }
        return Seen(
            workers=found["workers"],
            serving=found["serving"],
            served_at=found["serving_at_ns"] * NANO,
            marks=marks,
            calls=found["calls"],
        )

    def _ask(self, method: str, path: str, body: str | None, *, seconds: float) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._control_port, timeout=seconds)
        try:
            connection.request(method, path, body=body)
            answer = connection.getresponse()
            answered = answer.read()
        finally:
            connection.close()
        if answer.status != 200:
            raise RuntimeError(f"fake-fleet: {method} {path}: {answer.status} {answered.decode()}")
        return answered


if __name__ == "__main__":
    print(programs.ensure_part(PART).path(PROGRAM))
