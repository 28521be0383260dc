"""Monitors, alerts and dashboards of the chart, rendered by the real helm."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from tests.cluster.test_operator_chart import CHART, NAMESPACE, Rendered
from tests.support.builders import build_pod, make_fleet

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_operator.runtime.settings import parse_settings
from rlfleet_resources import names

NAMES = "metrics.fleetNames=true"
MONITORS = ("metrics.serviceMonitor.enabled=true", "metrics.podMonitor.enabled=true")
RULE = "metrics.prometheusRule.enabled=true"
DASHBOARDS = "metrics.dashboards.enabled=true"
PROTECTED = "metrics.networkPolicy.enabled=true"
FILES = {file.name: json.loads(file.read_text()) for file in CHART.glob("files/dashboards/*.json")}
ALERTS = [
    rule
    for group in yaml.safe_load((CHART / "files/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    return devcluster_api


def alerts(rendered: Rendered) -> dict[str, dict[str, Any]]:
    groups = rendered.one("PrometheusRule")["spec"]["groups"]
    return {rule["alert"]: rule for group in groups for rule in group["rules"]}


def test_objects_of_the_prometheus_operator_are_made_on_request_alone(cluster: Cluster) -> None:
    kinds = {each["kind"] for each in Rendered(cluster).objects}
    more = {each["kind"] for each in Rendered(cluster, *MONITORS, NAMES, RULE).objects}

    assert more - kinds == {"ServiceMonitor", "PodMonitor", "PrometheusRule"}


def test_a_service_leads_to_the_metrics_of_every_operator(cluster: Cluster) -> None:
    rendered = Rendered(cluster, *MONITORS)
    service = rendered.one("Service", "rlfleet-metrics")
    monitor = rendered.one("ServiceMonitor")["spec"]
    (port,) = service["spec"]["ports"]
    (endpoint,) = monitor["endpoints"]

    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"].items() <= rendered.pod()["metadata"]["labels"].items()
    assert port["targetPort"] in {p["name"] for p in rendered.container()["ports"]}
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] == port["name"]
    assert endpoint["honorLabels"]


@pytest.mark.parametrize(
    ("value", "chosen"),
    [("watchNamespaces=[]", {"any": True}), ('watchNamespaces=["rl"]', {"matchNames": ["rl"]})],
)
def test_workers_are_scraped_where_the_operator_watches(
    cluster: Cluster, value: str, chosen: dict[str, Any]
) -> None:
    monitor = Rendered(cluster, *MONITORS, value).one("PodMonitor", "rlfleet-workers")["spec"]
    pod = build_pod(make_fleet(replicas=1), 0, "image", revision="r")
    (container,) = pod["spec"]["containers"]

    assert monitor["namespaceSelector"] == chosen
    assert monitor["selector"]["matchExpressions"][0]["key"] == names.LABEL_FLEET
    assert names.LABEL_FLEET in pod["metadata"]["labels"]
    (endpoint,) = monitor["podMetricsEndpoints"]
    assert endpoint["port"] in {p["name"] for p in container["ports"]}
    assert [each["targetLabel"] for each in endpoint["relabelings"]] == ["fleet"]


def test_alerts_arrive_as_they_are_in_the_file(cluster: Cluster) -> None:
    made = alerts(Rendered(cluster, NAMES, RULE))
    expected = {rule["alert"]: rule for rule in ALERTS}
    del made["RlfleetNoLeader"], expected["RlfleetNoLeader"]

    assert made == expected


def test_a_release_is_alerted_that_none_of_its_own_operators_leads(cluster: Cluster) -> None:
    """Another release on the cluster may have a leader."""
    rendered = Rendered(cluster, NAMES, RULE)
    flag = next(a for a in rendered.container()["args"] if a.startswith("--lease-name="))
    lease = f"{NAMESPACE}/{flag.partition('=')[2]}"
    alert = alerts(rendered)["RlfleetNoLeader"]

    assert alert["expr"] == f'absent(rlfleet_operator_leading{{operator="{lease}"}} == 1)'
    assert alert["labels"] == {"severity": "critical", "operator": lease}


def test_alerts_can_be_left_out_and_get_labels_and_runbooks(cluster: Cluster) -> None:
    value = 'metrics.prometheusRule={"enabled": true, "disabled": ["RlfleetRolloutSlow"]'
    value += ', "alertLabels": {"team": "rl"}, "runbookUrl": "https://runbooks.example/alerts"}'
    made = alerts(Rendered(cluster, NAMES, value))
    links = {name: rule["annotations"]["runbook_url"] for name, rule in made.items()}

    assert {rule["alert"] for rule in ALERTS} - set(made) == {"RlfleetRolloutSlow"}
    assert {rule["labels"]["team"] for rule in made.values()} == {"rl"}
    assert links["RlfleetNoLeader"] == "https://runbooks.example/alerts#rlfleetnoleader"


def test_a_monitor_without_its_service_is_refused(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match=r"metrics\.service\.enabled"):
        Rendered(cluster, *MONITORS, "metrics.service.enabled=false")


def dashboards(rendered: Rendered) -> list[dict[str, Any]]:
    return [c for c in rendered.all("ConfigMap") if "-dashboard-" in c["metadata"]["name"]]


def test_dashboards_arrive_as_they_are_in_the_files_on_request_alone(cluster: Cluster) -> None:
    made = dashboards(Rendered(cluster, NAMES, DASHBOARDS))
    contents = {name: json.loads(text) for each in made for name, text in each["data"].items()}

    assert dashboards(Rendered(cluster)) == []
    assert contents == FILES
    assert {each["metadata"]["labels"]["grafana_dashboard"] for each in made} == {"1"}
    assert {each["metadata"]["name"] for each in made} == {
        "rlfleet-dashboard-fleets",
        "rlfleet-dashboard-operator",
    }


def test_dashboards_can_go_to_the_folder_and_the_namespace_of_a_grafana(cluster: Cluster) -> None:
    value = 'metrics.dashboards={"enabled": true, "namespace": "monitoring"'
    value += ', "labels": {"grafana": "rl"}, "annotations": {"grafana_folder": "rlfleet"}}'
    made = [each["metadata"] for each in dashboards(Rendered(cluster, NAMES, value))]

    assert {each["namespace"] for each in made} == {"monitoring"}
    assert {each["labels"]["grafana"] for each in made} == {"rl"}
    assert {each["annotations"]["grafana_folder"] for each in made} == {"rlfleet"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ((), False),
        ((PROTECTED,), True),
        ((PROTECTED, "metrics.fleetNames=false"), False),
        ((NAMES,), True),
    ],
    ids=["default", "with a policy", "not wanted", "wanted"],
)
def test_metrics_name_fleets_only_where_a_policy_limits_the_readers_or_on_request(
    cluster: Cluster, values: tuple[str, ...], *, named: bool
) -> None:
    rendered = Rendered(cluster, *values)

    assert parse_settings(rendered.container()["args"]).fleet_metrics is named


@pytest.mark.parametrize("values", [(RULE,), (DASHBOARDS,), (RULE, "metrics.fleetNames=false")])
def test_alerts_and_dashboards_without_the_series_that_they_need_are_refused(
    cluster: Cluster, values: tuple[str, ...]
) -> None:
    with pytest.raises(CommandError, match=r"metrics\.networkPolicy\.enabled"):
        Rendered(cluster, *values)


def test_a_policy_closes_the_operators_pods_to_all_but_the_readers_of_metrics(
    cluster: Cluster,
) -> None:
    peer = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    closed = Rendered(cluster, PROTECTED)
    opened = Rendered(cluster, PROTECTED, f"metrics.networkPolicy.from={json.dumps([peer])}")
    specs = [each.one("NetworkPolicy")["spec"] for each in (closed, opened)]

    assert [spec["policyTypes"] for spec in specs] == [["Ingress"]] * 2
    assert [spec["ingress"] for spec in specs] == [
        [],
        [{"ports": [{"port": "metrics"}], "from": [peer]}],
    ]
    chosen = specs[0]["podSelector"]["matchLabels"]
    assert chosen.items() <= closed.pod()["metadata"]["labels"].items()
    assert Rendered(cluster).all("NetworkPolicy") == []
