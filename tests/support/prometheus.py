"""A real Prometheus, on this machine or inside a cluster that it scrapes by the chart's monitors."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

import httpx
import yaml
from tests.support.discovery import Discovery, label_name
from tests.support.waiting import eventually

from devcluster import Cluster

PORT = 9090
_SECONDS = "1s"

_CHOICES = {"$namespace": ".*", "$fleet": ".*", "$kind": ".*", "$window": "5m"}
_CHOICES |= {"$__rate_interval": "30s"}

Job = dict[str, Any]


def scrape_jobs(
    monitors: Iterable[dict[str, Any]], namespace: str, discovery: Discovery
) -> list[Job]:
    """Scrape configurations of ServiceMonitors and PodMonitors, as the Prometheus operator makes them.

    Args:
        monitors: Objects of the rendered chart.
        namespace: The namespace of monitors that name no other.
        discovery: Finds the targets.

    Source: `pkg/prometheus/promcfg.go` of the Prometheus operator.
    """
    return [_job(monitor, namespace, discovery) for monitor in monitors]


def _job(monitor: dict[str, Any], namespace: str, discovery: Discovery) -> Job:
    spec, of_pods = monitor["spec"], monitor["kind"] == "PodMonitor"
    (endpoint,) = spec["podMetricsEndpoints" if of_pods else "endpoints"]
    source = "__meta_kubernetes_pod" if of_pods else "__meta_kubernetes_service"
    port = "pod_container_port_name" if of_pods else "endpoint_port_name"
    chosen = spec["selector"]
    rules = [
        *(
            _keep(f"{source}_label_{label_name(key)}", value)
            for key, value in chosen.get("matchLabels", {}).items()
        ),
        *(
            _keep(f"{source}_labelpresent_{label_name(each['key'])}", "true")
            for each in chosen.get("matchExpressions", ())
        ),
        _keep(f"__meta_kubernetes_{port}", endpoint["port"]),
        _copy("__meta_kubernetes_namespace", "namespace"),
        _copy("__meta_kubernetes_pod_name", "pod"),
        *(
            _copy(f"{source}_label_{label_name(k)}", label_name(k))
            for k in spec.get("podTargetLabels", ())
        ),
        *(
            _copy(each["sourceLabels"][0], each["targetLabel"])
            for each in endpoint.get("relabelings", ())
        ),
    ]
    places = spec.get("namespaceSelector", {"matchNames": [namespace]})
    if not places.get("any"):
        among = "|".join(map(re.escape, places["matchNames"]))
        source_labels = ["__meta_kubernetes_namespace"]
        rules.append({"source_labels": source_labels, "regex": among, "action": "keep"})
    file = discovery.pods if of_pods else discovery.endpoints
    return {
        "job_name": monitor["metadata"]["name"],
        "honor_labels": endpoint.get("honorLabels", False),
        "file_sd_configs": [{"files": [str(file)], "refresh_interval": _SECONDS}],
        "relabel_configs": rules,
    }


def _keep(source: str, value: str) -> dict[str, Any]:
    return {"source_labels": [source], "regex": re.escape(value), "action": "keep"}


def _copy(source: str, target: str) -> dict[str, Any]:
    return {"source_labels": [source], "target_label": target}


def filled_in(expression: str) -> str:
    """An expression of a dashboard with everything chosen."""
    for variable, value in _CHOICES.items():
        expression = expression.replace(variable, value)
    return expression


def impatient(rules: dict[str, Any], seconds: int) -> dict[str, Any]:
    """A copy of alert rules with short times.

    They hold for, and live on for, `seconds`, and consider ten times that. Limits of durations in
    expressions are at most 20 s.
    """
    copied: dict[str, Any] = json.loads(json.dumps(rules))
    for group in copied["groups"]:
        for rule in group["rules"]:
            rule["for"] = rule["keep_firing_for"] = f"{seconds}s"
            expression = re.sub(r"\[\d+m\]", f"[{10 * seconds}s]", rule["expr"])
            rule["expr"] = re.sub(r"(_seconds\)?) > \d{2,}\b", r"\1 > 20", expression)
    return copied


class Prometheus:
    """The program of this machine.

    Fields:
        inside: Turns a command line into one that runs where the targets are.
        reach: From the port that it listens on to one of this machine.
    """

    def __init__(
        self,
        folder: Path,
        jobs: list[Job],
        rules: dict[str, Any],
        *,
        port: int,
        host: str = "127.0.0.1",
        inside: Callable[[list[str]], list[str]] = list,
        reach: Callable[[int], int] = lambda port: port,
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
            "web.listen-address": f"{host}:{port}",
        }
        flags = [f"--{name}={value}" for name, value in arguments.items()]
        self._log = folder / "log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                inside([program, *flags, "--web.enable-lifecycle"]), stdout=log, stderr=log
            )
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{reach(port)}", timeout=30)
        eventually(self._is_ready, within_seconds=60, describe=self._log.read_text)

    @classmethod
    def in_cluster(
        cls, cluster: Cluster, folder: Path, jobs: list[Job], rules: dict[str, Any]
    ) -> Self:
        """One in the network of the cluster's first node."""
        node = json.loads(cluster.kubectl("get", "node", "node-1", "-o", "json").stdout)
        addresses = node["status"]["addresses"]
        host = next(str(a["address"]) for a in addresses if a["type"] == "InternalIP")

        def reach(port: int) -> int:
            return cluster.forward_address(host, port)

        return cls(folder, jobs, rules, port=PORT, host=host, inside=cluster.inside, reach=reach)

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
