"""The page about metrics names the metrics that pods have."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from tests.support.builders import build_pod, make_fleet

from rlfleet_resources import names

PAGE = Path(__file__).parents[2] / "docs/how-to/scrape-metrics.md"


def blocks() -> list[dict[str, Any]]:
    found = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    return [yaml.safe_load(text) for text in found]


def pod() -> dict[str, Any]:
    return build_pod(make_fleet(replicas=1), 0, "image", revision="r")


def ports() -> dict[str, int]:
    (container,) = pod()["spec"]["containers"]
    return {port["name"]: port["containerPort"] for port in container["ports"]}


def test_the_pod_monitor_selects_workers_and_a_port_that_they_have():
    monitor, _, _ = blocks()
    (chosen,) = monitor["spec"]["selector"]["matchExpressions"]
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]

    assert chosen == {"key": names.LABEL_FLEET, "operator": "Exists"}
    assert chosen["key"] in pod()["metadata"]["labels"]
    assert ports()[endpoint["port"]] == 8082
    assert monitor["spec"]["podTargetLabels"] == [names.LABEL_FLEET]


def test_the_scrape_configuration_keeps_the_same():
    _, configuration, _ = blocks()
    (job,) = configuration["scrape_configs"]
    kept = {r["source_labels"][0]: r["regex"] for r in job["relabel_configs"] if "action" in r}
    label = re.sub(r"[^a-zA-Z0-9]", "_", names.LABEL_FLEET)

    assert kept == {
        f"__meta_kubernetes_pod_labelpresent_{label}": "true",
        "__meta_kubernetes_pod_container_port_name": "metrics",
    }


def test_the_network_policy_names_every_port():
    _, _, policy = blocks()
    named = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}

    assert named == set(ports())
