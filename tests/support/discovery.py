"""Finds what a Prometheus scrapes on a cluster: Debian's is built without its own discovery.

The labels are those of Prometheus' Kubernetes discovery, as far as the chart's monitors use them. Source:
Prometheus documentation, `kubernetes_sd_config`.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from devcluster import Cluster

Object = dict[str, Any]
_POLL_SECONDS = 2.0
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")


def label_name(key: str) -> str:
    """The name of a Kubernetes label in Prometheus."""
    return _NOT_IN_LABELS.sub("_", key)


class Discovery:
    """Writes the targets of a cluster into two files, every two seconds.

    Fields:
        pods, endpoints: the files, of the discovery's roles `pod` and `endpoints`.
    """

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self._cluster = cluster
        self.pods, self.endpoints = folder / "pods.json", folder / "endpoints.json"
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._look()
        self._thread.start()

    def stop(self) -> None:
        """End it and wait."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_POLL_SECONDS):
            self._look()

    def _look(self) -> None:
        pods = self._all("pods")
        _write(self.pods, [target for pod in pods for target in _of_pod(pod)])
        services = {_key(service): service for service in self._all("services")}
        found = [
            target
            for endpoints in self._all("endpoints")
            if _key(endpoints) in services
            for target in _of_endpoints(endpoints, services[_key(endpoints)])
        ]
        _write(self.endpoints, found)

    def _all(self, kind: str) -> list[Object]:
        found: list[Object] = json.loads(
            self._cluster.kubectl("get", kind, "-A", "-o", "json").stdout
        )["items"]
        return found


def _write(file: Path, targets: list[Object]) -> None:
    """Replace the file: Prometheus may be reading it."""
    new = file.with_suffix(".new")
    new.write_text(json.dumps(targets))
    new.replace(file)


def _key(each: Object) -> tuple[str, str]:
    return each["metadata"]["namespace"], each["metadata"]["name"]


def _labels_of(each: Object, source: str) -> dict[str, str]:
    labels = each["metadata"].get("labels", {})
    return {
        "__meta_kubernetes_namespace": each["metadata"]["namespace"],
        f"__meta_kubernetes_{source}_name": each["metadata"]["name"],
        **{f"__meta_kubernetes_{source}_label_{label_name(k)}": v for k, v in labels.items()},
        **{f"__meta_kubernetes_{source}_labelpresent_{label_name(k)}": "true" for k in labels},
    }


def _of_pod(pod: Object) -> Iterator[Object]:
    address = pod["status"].get("podIP")
    for container in pod["spec"]["containers"] if address else ():
        for port in container.get("ports", ()):
            labels = {"__meta_kubernetes_pod_container_port_name": port.get("name", "")}
            yield {
                "targets": [f"{address}:{port['containerPort']}"],
                "labels": _labels_of(pod, "pod") | labels,
            }


def _of_endpoints(endpoints: Object, service: Object) -> Iterator[Object]:
    for subset in endpoints.get("subsets", ()):
        for port in subset.get("ports", ()):
            for address in subset.get("addresses", ()):
                labels = {
                    "__meta_kubernetes_endpoint_port_name": port.get("name", ""),
                    "__meta_kubernetes_pod_name": address.get("targetRef", {}).get("name", ""),
                }
                yield {
                    "targets": [f"{address['ip']}:{port['port']}"],
                    "labels": _labels_of(service, "service") | labels,
                }
