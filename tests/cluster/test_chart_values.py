"""Values that change how the operator's own pods run, rendered by the real helm."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from tests.cluster.test_operator_chart import CHART, Rendered

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_operator.api.weights import WeightsSpec

DIGEST = "sha256:" + "a" * 64


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    return devcluster_api


@pytest.mark.parametrize(
    ("values", "image"),
    [
        ((), "rlfleet/operator:0.1.0"),
        (('image.registry="registry.example"',), "registry.example/rlfleet/operator:0.1.0"),
        (('image.tag="2"',), "rlfleet/operator:2"),
        (('image.tag="2"', f'image.digest="{DIGEST}"'), f"rlfleet/operator@{DIGEST}"),
    ],
)
def test_the_image_has_a_registry_and_a_tag_or_a_digest(
    cluster: Cluster, values: tuple[str, ...], image: str
) -> None:
    assert Rendered(cluster, *values).container()["image"] == image


@pytest.mark.parametrize(
    ("value", "name"),
    [('nameOverride="ops"', "rlfleet-ops"), ('fullnameOverride="weights"', "weights")],
)
def test_names_can_be_replaced(cluster: Cluster, value: str, name: str) -> None:
    rendered = Rendered(cluster, value)
    (lease,) = (a for a in rendered.container(name)["args"] if a.startswith("--lease-name="))

    assert rendered.one("ServiceAccount", name)
    assert lease == f"--lease-name={name}"


def test_common_labels_are_on_every_object_and_on_the_pods(cluster: Cluster) -> None:
    rendered = Rendered(cluster, 'commonLabels={"team": "rl"}', "crds.enabled=false")

    assert [
        o["kind"] for o in rendered.objects if o["metadata"]["labels"].get("team") != "rl"
    ] == []
    assert rendered.pod()["metadata"]["labels"]["team"] == "rl"
    assert "team" not in rendered.one("Deployment")["spec"]["selector"]["matchLabels"]


def test_operators_prefer_different_nodes_unless_an_affinity_is_given(cluster: Cluster) -> None:
    given: dict[str, Any] = {"nodeAffinity": {}}
    (preferred,) = Rendered(cluster).pod()["spec"]["affinity"]["podAntiAffinity"].values()
    chosen = Rendered(cluster, 'affinity={"nodeAffinity": {}}').pod()["spec"]["affinity"]
    labels = Rendered(cluster).pod()["metadata"]["labels"]

    term = preferred[0]["podAffinityTerm"]
    assert term["topologyKey"] == "kubernetes.io/hostname"
    assert term["labelSelector"]["matchLabels"].items() <= labels.items()
    assert chosen == given


def test_values_for_the_operators_pods_reach_its_manifest(cluster: Cluster) -> None:
    volume = {"name": "ca", "configMap": {"name": "ca"}}
    mount = {"name": "ca", "mountPath": "/etc/ca"}
    rendered = Rendered(
        cluster,
        'extraArgs=["--log-level=DEBUG"]',
        'extraEnv=[{"name": "A", "value": "1"}]',
        'extraVolumes=[{"name": "ca", "configMap": {"name": "ca"}}]',
        'extraVolumeMounts=[{"name": "ca", "mountPath": "/etc/ca"}]',
        'strategy={"type": "Recreate"}',
        "livenessProbe.periodSeconds=30",
        "podSecurityContext.runAsUser=2000",
    )
    container, pod = rendered.container(), rendered.pod()["spec"]

    assert container["args"][-1] == "--log-level=DEBUG"
    assert container["env"] == [{"name": "A", "value": "1"}]
    assert (pod["volumes"], container["volumeMounts"]) == ([volume], [mount])
    assert rendered.one("Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    assert container["livenessProbe"]["periodSeconds"] == 30
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsNonRoot"]) == (
        2000,
        True,
    )


def test_objects_can_be_added_as_maps_and_as_templates(cluster: Cluster) -> None:
    secret = '{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "one"}}'
    text = '"{apiVersion: v1, kind: Secret, metadata: {name: {{ .Release.Name }}-two}}"'
    rendered = Rendered(cluster, f"extraObjects=[{secret}, {text}]")

    assert {o["metadata"]["name"] for o in rendered.all("Secret")} == {"one", "rlfleet-two"}


def test_a_disruption_budget_can_be_changed_and_left_out(cluster: Cluster) -> None:
    changed = Rendered(cluster, 'podDisruptionBudget.maxUnavailable="50%"')

    assert changed.one("PodDisruptionBudget")["spec"]["maxUnavailable"] == "50%"
    assert Rendered(cluster, "podDisruptionBudget.enabled=false").all("PodDisruptionBudget") == []


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
