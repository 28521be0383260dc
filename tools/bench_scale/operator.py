"""The real operator in a process of its own, and what its metrics say."""

from __future__ import annotations

import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Self

from bench_scale import processes
from free_ports import free_port

LEASE = "bench-scale"
_POLL_SECONDS = 20.0
"""The gauge of the lag forgets after 60 s. Each look costs the operator processor time."""


class Operator:
    """One process, which is not started again: while it runs it has kept its Lease."""

    def __init__(self, kubeconfig: Path, namespace: str, log: Path) -> None:
        self._log = log
        self._port = free_port()
        ports = (f"--metrics-port={self._port}", f"--probe-port={free_port()}")
        self.worst_lag_seconds = 0.0
        self.worst_busy_seconds = 0.0
        place = (f"--namespaces={namespace}", f"--lease-namespace={namespace}")
        options = (*place, f"--lease-name={LEASE}", *ports, "--default-image=fake")
        self._process = processes.start("fleet_operator", *options, kubeconfig=kubeconfig, log=log)
        self.pid = self._process.pid
        self._ended = threading.Event()
        self._looking = threading.Thread(target=self._look, daemon=True)
        self._looking.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask it to end, and make it end after 20 s."""
        self._ended.set()
        self._looking.join()
        if self._process.poll() is None:
            processes.end(self._process)

    def kill(self) -> None:
        """Kill it: it ends without giving its Lease back."""
        self._ended.set()
        self._looking.join()
        self._process.kill()
        self._process.wait()

    @property
    def leases_lost(self) -> int:
        """1 if it has ended by itself, which a lost Lease makes it do."""
        return int(self._process.poll() is not None)

    def wait_leading(self, *, seconds: float = 60) -> None:
        """Wait until it leads.

        Errors: TimeoutError with the end of its log.
        """
        until = time.monotonic() + seconds
        while self.metrics().get("rlfleet_operator_leading") != 1:
            if time.monotonic() > until or self.leases_lost:
                raise TimeoutError(f"the operator does not lead:\n{self.said()}")
            time.sleep(0.1)

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-3000:]

    def metrics(self) -> dict[str, float]:
        """Name → sum over all labels; empty while it does not answer."""
        try:
            url = f"http://127.0.0.1:{self._port}/metrics"
            with urllib.request.urlopen(url, timeout=30) as answer:
                page = answer.read().decode()
        except (OSError, urllib.error.HTTPError):
            return {}
        found: dict[str, float] = {}
        for line in page.splitlines():
            if not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
        return found

    def look(self) -> None:
        """Take over the worst lag of the event loop that it shows."""
        shown = self.metrics()
        lag = shown.get("rlfleet_event_loop_lag_seconds", 0.0)
        busy = shown.get("rlfleet_event_loop_busy_seconds", 0.0)
        self.worst_lag_seconds = max(self.worst_lag_seconds, lag)
        self.worst_busy_seconds = max(self.worst_busy_seconds, busy)

    def cpu_seconds(self) -> float:
        """Processor time until now."""
        return processes.cpu_seconds(self.pid)

    def peak_memory_bytes(self) -> int:
        """The most memory that it has had."""
        return processes.peak_memory_bytes(self.pid)

    def _look(self) -> None:
        """Look more often than the gauge forgets."""
        while not self._ended.wait(_POLL_SECONDS):
            self.look()
