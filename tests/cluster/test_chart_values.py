"""Values that change how the operator's own pods run, rendered by the real helm."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.cluster.test_operator_chart import CHART, NAMESPACE, Rendered

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_api.settings import parse_settings as parse_api_settings
from fleet_operator.api.weights import WeightsSpec
from fleet_operator.runtime.settings import parse_settings


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    return devcluster_api


def test_operators_prefer_different_nodes_unless_an_affinity_is_given(cluster: Cluster) -> None:
    given: dict[str, Any] = {"nodeAffinity": {}}
    (preferred,) = Rendered(cluster).pod()["spec"]["affinity"]["podAntiAffinity"].values()
    chosen = Rendered(cluster, 'affinity={"nodeAffinity": {}}').pod()["spec"]["affinity"]
    labels = Rendered(cluster).pod()["metadata"]["labels"]

    term = preferred[0]["podAffinityTerm"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert chosen == given


def test_objects_can_be_added_as_maps_and_as_templates(cluster: Cluster) -> None:
    secret = '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}}'
    text = '"{apiVersion: v1, kind: Secret, metadata: {name: {{ .Release.Name }}-two}}"'
    rendered = Rendered(cluster, f"extraObjects=[{secret}, {text}]")

    assert {o["metadata"]["name"] for o in rendered.all("Secret")} == {"one", "rlfleet-two"}


EACH_POD = pytest.mark.parametrize(("place", "name"), [("", "rlfleet"), ("api.", "rlfleet-api")])
"""Where a value of the operator, or the same of the RL API, is, and the name of its objects."""


@EACH_POD
@pytest.mark.parametrize(
    ("values", "allowed"),
    [
        ((), {"maxUnavailable": 1}),
        (('maxUnavailable="50%"',), {"maxUnavailable": "50%"}),
        (("maxUnavailable=0",), {"maxUnavailable": 0}),
        (("minAvailable=1",), {"minAvailable": 1}),
        (('minAvailable="50%"', "maxUnavailable=null"), {"minAvailable": "50%"}),
    ],
)
def test_a_disruption_budget_has_one_of_two_limits(
    cluster: Cluster, place: str, name: str, values: tuple[str, ...], allowed: dict[str, Any]
) -> None:
    changed = [f"{place}podDisruptionBudget.{value}" for value in values]
    spec = Rendered(cluster, "api.enabled=true", *changed).one("PodDisruptionBudget", name)["spec"]

    del spec["selector"]
    assert spec == allowed


@EACH_POD
def test_a_disruption_budget_with_both_limits_is_refused(
    cluster: Cluster, place: str, name: str
) -> None:
    budget = f"{place}podDisruptionBudget"
    with pytest.raises(CommandError, match=rf"{budget} has minAvailable and maxUnavailable"):
        Rendered(
            cluster, "api.enabled=true", f"{budget}.minAvailable=1", f"{budget}.maxUnavailable=0"
        )


WITHOUT_NAMESPACE = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
EVERY_OBJECT = (
    "api.enabled=true",
    "api.networkPolicy.enabled=true",
    *(f"metrics.{kind}.enabled=true" for kind in ("serviceMonitor", "podMonitor", "dashboards")),
    "metrics.prometheusRule.enabled=true",
    "metrics.networkPolicy.enabled=true",
)


@pytest.mark.parametrize(
    ("values", "namespace"),
    [((), NAMESPACE), (('namespaceOverride="elsewhere"',), "elsewhere")],
    ids=["of the release", "given"],
)
def test_every_object_of_the_release_is_in_one_namespace(
    cluster: Cluster, values: tuple[str, ...], namespace: str
) -> None:
    made = Rendered(cluster, *EVERY_OBJECT, *values)
    subjects = [
        subject
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for binding in made.all(kind)
        for subject in binding["subjects"]
    ]
    places = {
        (o["kind"], o["metadata"].get("namespace"))
        for o in made.objects
        if o["kind"] not in WITHOUT_NAMESPACE
    }
    (alert,) = (
        rule
        for group in made.one("PrometheusRule")["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"] == "RlfleetNoLeader"
    )

    assert {place for _, place in places} == {namespace}
    assert {"Deployment", "Service", "Role", "ConfigMap", "PrometheusRule"} <= {
        k for k, _ in places
    }
    assert {subject["namespace"] for subject in subjects} == {namespace}
    assert parse_settings(made.container()["args"]).lease_namespace == namespace
    assert alert["labels"]["operator"] == f"{namespace}/rlfleet"


def test_policies_in_namespaces_of_fleets_admit_pods_of_the_given_namespace(
    cluster: Cluster,
) -> None:
    made = Rendered(
        cluster,
        'namespaceOverride="elsewhere"',
        'watchNamespaces=["rl"]',
        "networkPolicy.enabled=true",
        "api.enabled=true",
        'api.externalFleets=["rl/policy"]',
    )
    policies = made.all("NetworkPolicy")
    admitted = [
        peer["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"]
        for policy in policies
        for rule in policy["spec"]["ingress"]
        for peer in rule.get("from", ())
        if "namespaceSelector" in peer
    ]

    assert {policy["metadata"]["namespace"] for policy in policies} == {"rl"}
    assert len(admitted) > 2
    assert set(admitted) == {"elsewhere"}


def test_notes_name_the_given_namespace(cluster: Cluster) -> None:
    words = ("install", "notes", str(CHART), "--dry-run=client", "-n", NAMESPACE)
    shown = cluster.helm(*words, "--set", "namespaceOverride=elsewhere").stdout
    _, _, notes = shown.partition("NOTES:")

    assert "runs in namespace elsewhere." in notes
    assert "kubectl -n elsewhere rollout status" in notes
    assert NAMESPACE not in notes


def test_ports_can_be_changed(cluster: Cluster) -> None:
    made = Rendered(
        cluster,
        "api.enabled=true",
        *("metricsPort=9080", "probePort=9081", "api.port=9090", "api.metricsPort=9091"),
        "api.probePort=9092",
    )
    operator = parse_settings(made.container()["args"])
    opened = {p["name"]: p["containerPort"] for p in made.container("rlfleet-api")["ports"]}
    api = parse_api_settings(made.container("rlfleet-api")["args"])

    assert [p["containerPort"] for p in made.container()["ports"]] == [9080, 9081]
    assert (operator.metrics_port, operator.probe_port) == (9080, 9081)
    assert opened == {"http": 9090, "metrics": 9091, "probes": 9092}
    assert (api.port, api.metrics_port, api.probe_port) == (9090, 9091, 9092)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("hostNetwork=true", "networkPolicy.enabled=true"), r"networkPolicy\.adminFrom"),
        (("api.hostNetwork=true", "networkPolicy.enabled=true"), r"networkPolicy\.metricsFrom"),
        (("api.hostNetwork=true", "api.networkPolicy.enabled=true"), "has no effect on pods"),
        (("hostNetwork=true", "metrics.networkPolicy.enabled=true"), "has no effect on pods"),
    ],
)
def test_policies_that_do_not_fit_the_network_of_the_node_are_refused(
    cluster: Cluster, values: tuple[str, ...], message: str
) -> None:
    nodes = '[{"ipBlock":{"cidr":"192.0.2.0/24"}}]'
    named = [f"networkPolicy.{key}={nodes}" for key in ("adminFrom", "metricsFrom")]
    with pytest.raises(CommandError, match=message):
        Rendered(cluster, "api.enabled=true", 'watchNamespaces=["rl"]', *values)

    if values[1] == "networkPolicy.enabled=true":
        assert Rendered(cluster, "api.enabled=true", 'watchNamespaces=["rl"]', *values, *named)


def test_the_annotations_for_artifact_hub_name_the_crds_and_a_valid_example(
    cluster: Cluster,
) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())["annotations"]
    declared = {crd["name"] for crd in yaml.safe_load(chart["artifacthub.io/crds"])}
    crds = Rendered(cluster).all("CustomResourceDefinition")
    (example,) = yaml.safe_load(chart["artifacthub.io/crdsExamples"])

    assert declared == {crd["metadata"]["name"] for crd in crds}
    WeightsSpec.model_validate(example["spec"])


@pytest.mark.parametrize("label", ["name", "instance"])
def test_labels_of_others_do_not_keep_a_deployment_from_its_pods(
    cluster: Cluster, label: str
) -> None:
    other = f'{{"app.kubernetes.io/{label}": "other", "release": "prom"}}'
    rendered = Rendered(
        cluster,
        f"commonLabels={other}",
        f"podLabels={other}",
        f"api.podLabels={other}",
        "api.enabled=true",
        "metrics.serviceMonitor.enabled=true",
        f"metrics.serviceMonitor.labels={other}",
    )

    for name in ("rlfleet", "rlfleet-api"):
        deployment = rendered.one("Deployment", name)
        chosen = deployment["spec"]["selector"]["matchLabels"]
        assert chosen.items() <= rendered.pod(name)["metadata"]["labels"].items()
        assert "other" not in chosen.values()
        assert rendered.pod(name)["metadata"]["labels"]["release"] == "prom"


def test_operators_of_one_namespace_select_their_own_pods(cluster: Cluster) -> None:
    one, two = (
        Rendered(cluster, f'fullnameOverride="{name}"').one("Deployment", name)
        for name in ("one", "two")
    )

    labels = one["spec"]["template"]["metadata"]["labels"]
    assert not two["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_names_that_are_numbers_stay_text(cluster: Cluster) -> None:
    rendered = Rendered(
        cluster, 'watchNamespaces=["123"]', 'networkPolicy={"enabled": true}', "api.enabled=true"
    )

    found = {o["metadata"].get("namespace", "") for o in rendered.objects}
    assert "123" in found
    assert all(isinstance(namespace, str) for namespace in found)


def test_a_mirror_has_the_workers_image_too(cluster: Cluster) -> None:
    container = Rendered(cluster, 'image.registry="mirror.example"').container()

    assert "--default-image=mirror.example/rlfleet/worker:0.1.0" in container["args"]


@pytest.mark.parametrize("value", ["livenessProbe=null", "image.registry=null"])
def test_a_value_may_be_null(cluster: Cluster, value: str) -> None:
    container = Rendered(cluster, value).container()

    assert container["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert container["image"] == "rlfleet/operator:0.1.0"


def test_an_external_fleet_must_be_in_a_watched_namespace(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="watchNamespaces lacks a"):
        Rendered(cluster, "api.enabled=true", 'api.externalFleets=["a/x"]', 'watchNamespaces=["c"]')
