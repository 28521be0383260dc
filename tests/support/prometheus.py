"""A real Prometheus for tests, with rules that do not make them wait."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import yaml
from tests.support.waiting import eventually

_SECONDS = "1s"

_CHOICES = {"$namespace": ".*", "$fleet": ".*", "$kind": ".*", "$window": "5m"}
_CHOICES |= {"$__rate_interval": "30s"}

Job = dict[str, Any]


def filled_in(expression: str) -> str:
    """An expression of a dashboard with everything chosen."""
    for variable, value in _CHOICES.items():
        expression = expression.replace(variable, value)
    return expression


def impatient(rules: dict[str, Any], seconds: int) -> dict[str, Any]:
    """A copy of alert rules that hold for, and look back over, this many seconds at most."""
    copied: dict[str, Any] = json.loads(json.dumps(rules))
    for group in copied["groups"]:
        for rule in group["rules"]:
            rule["for"] = f"{seconds}s"
            rule["expr"] = re.sub(r"\[\d+m\]", f"[{10 * seconds}s]", rule["expr"])
    return copied


class Prometheus:
    """The program of this machine, on a port of the loopback."""

    def __init__(
        self,
        folder: Path,
        jobs: list[Job],
        rules: dict[str, Any],
        *,
        port: int,
    ) -> None:
        program = shutil.which("prometheus")
        assert program is not None, "prometheus is missing: apt install prometheus"
        (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
        often = {"scrape_interval": _SECONDS, "evaluation_interval": _SECONDS}
        settings = {
            "global": often | {"scrape_timeout": _SECONDS},
            "rule_files": ["rules.yaml"],
            "scrape_configs": jobs,
        }
        (folder / "prometheus.yaml").write_text(yaml.safe_dump(settings))
        arguments = {
            "config.file": folder / "prometheus.yaml",
            "storage.tsdb.path": folder / "data",
            "web.listen-address": f"127.0.0.1:{port}",
        }
        flags = [f"--{name}={value}" for name, value in arguments.items()]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [program, *flags, "--web.enable-lifecycle"], stdout=log, stderr=log
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
        eventually(self._is_ready, within_seconds=60, describe=self._log.read_text)

    def _is_ready(self) -> bool:
        try:
            return self._client.get("/-/ready").is_success
        except httpx.TransportError:
            return False

    def ask(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query.

        Errors: AssertionError with Prometheus' words if it refuses the expression.
        """
        reply = self._client.get("/api/v1/query", params={"query": expression})
        assert reply.is_success, f"{expression}: {reply.text}"
        found: list[dict[str, Any]] = reply.json()["data"]["result"]
        return found

    def states(self, alert: str) -> set[str]:
        """`pending` and `firing`; empty if the alert is quiet."""
        return {s["metric"]["alertstate"] for s in self.ask(f'ALERTS{{alertname="{alert}"}}')}

    def stop(self) -> None:
        """End it and wait."""
        self._client.post("/-/quit")
        self._client.close()
        self._process.wait(timeout=30)
