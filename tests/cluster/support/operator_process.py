"""The real operator as a process of its own, with the chart's arguments and account."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.cluster.support.api_proxy import ApiProxy
from tests.support.waiting import eventually_async

from free_ports import free_port

ROOT = Path(__file__).parents[3]
KEPT = ("PATH", "HOME", "LANG", "TMPDIR")
LAST_CHARACTERS = 1000


class OperatorProcess:
    """One replica. `again`: whether it is started again when it ends by itself, as a kubelet would."""

    def __init__(
        self, proxy: ApiProxy, kubeconfig: Path, arguments: list[str], *, again: bool = False
    ) -> None:
        self.proxy = proxy
        self.metrics_port, self.probe_port = free_port(), free_port()
        self.starts = 0
        self.ends: list[str] = []
        """How it has ended without `stop`: the exit codes, with the last lines of the log."""
        self.log = kubeconfig.with_suffix(".log")
        self._kubeconfig = kubeconfig
        own = ("--metrics-port=", "--probe-port=")
        self._arguments = [a for a in arguments if not a.startswith(own)]
        self._again = again
        self._process: asyncio.subprocess.Process
        self._kept: asyncio.Task[int]

    async def start(self) -> None:
        """Start it; its output goes to `log`."""
        environment = {k: os.environ[k] for k in KEPT if k in os.environ} | {
            "KUBECONFIG": str(self._kubeconfig),
            "PYTHONPATH": f"{ROOT}/client:{ROOT}/operator:{ROOT}/worker",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "TZ": "UTC",
        }
        self.starts += 1
        with self.log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "fleet_operator"),
                *self._arguments,
                *(f"--metrics-port={self.metrics_port}", f"--probe-port={self.probe_port}"),
                env=environment,
                cwd=self._kubeconfig.parent,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        if self.starts == 1:
            self._kept = asyncio.create_task(self._keep())

    async def stop(self) -> int:
        """Ask it to end. Returns: its exit code."""
        self._again = False
        if self._process.returncode is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGTERM)
            try:
                async with asyncio.timeout(20):
                    return await asyncio.shield(self._kept)
            except TimeoutError:
                self.send(signal.SIGKILL)
        return await self._kept

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.returncode is None:
            self._process.send_signal(number)

    async def ended(self, *, within_seconds: float = 60) -> int:
        """Wait for its end. Returns: its exit code."""
        async with asyncio.timeout(within_seconds):
            return await asyncio.shield(self._kept)

    async def page(self, path: str) -> tuple[int, str]:
        """Status and text of one of its own pages; 0 while it does not answer."""
        port = self.metrics_port if path == "/metrics" else self.probe_port
        return await asyncio.to_thread(_page, f"http://127.0.0.1:{port}{path}")

    async def metric(self, name: str) -> float:
        """Sum of a metric over all its labels."""
        _, page = await self.page("/metrics")
        lines = (line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)

    async def leads(self) -> bool:
        """Whether it leads, by its own account."""
        return await self.metric("rlfleet_operator_leading") == 1

    async def leading(self, *, within_seconds: float = 90) -> None:
        """Wait until it leads with its caches filled."""

        async def is_it() -> bool:
            return await self.leads() and (await self.page("/readyz"))[0] == 200

        await eventually_async(is_it, within_seconds=within_seconds, describe=self.said)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def peak_mib(self) -> float:
        """The most memory that the process has had."""
        return peak_mib(self._process.pid)

    @property
    def log_size(self) -> int:
        """Bytes of its log so far."""
        return self.log.stat().st_size if self.log.exists() else 0

    def said(self, *, since: int = 0) -> str:
        """The end of its log. `since`: number of its first bytes to leave out."""
        if not self.log.exists():
            return ""
        with self.log.open("rb") as log:
            log.seek(max(since, self.log_size - 6000))
            return log.read().decode(errors="replace")

    def lines(self) -> list[dict[str, Any]]:
        """Its log, parsed; lines that are not JSON are uncaught defects."""
        return [json.loads(line) for line in self.log.read_text().splitlines()]

    async def _keep(self) -> int:
        while True:
            code = await self._process.wait()
            if self._again:
                self.ends.append(f"exit code {code}: {self.said()[-LAST_CHARACTERS:]}")
                await asyncio.sleep(1)
            if not self._again:  # `stop` may come in the pause, too
                return code
            await self.start()
            if not self._again:  # or while it was being started
                self.send(signal.SIGKILL)


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (each for each in lines if each.startswith("VmHWM:"))
    return int(line.split()[1]) / 2**10


def _page(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except (OSError, http.client.HTTPException):
        return 0, ""
