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


@EACH_POD
def test_a_disruption_budget_can_be_left_out(cluster: Cluster, place: str, name: str) -> None:
    made = Rendered(cluster, "api.enabled=true", f"{place}podDisruptionBudget.enabled=false")

    left = {o["metadata"]["name"] for o in made.all("PodDisruptionBudget")}
    assert left == {"rlfleet", "rlfleet-api"} - {name}


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


@EACH_POD
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((), {}),
        (("hostNetwork=true",), {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}),
        (
            ("hostNetwork=true", 'dnsPolicy="Default"'),
            {"hostNetwork": True, "dnsPolicy": "Default"},
        ),
        (
            ('dnsPolicy="None"', 'dnsConfig={"nameservers":["192.0.2.1"]}'),
            {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["192.0.2.1"]}},
        ),
        (("hostNetwork=null", "dnsConfig=null"), {}),
    ],
)
def test_a_pod_may_have_the_network_of_the_node_and_resolvers_of_its_own(
    cluster: Cluster, place: str, name: str, values: tuple[str, ...], expected: dict[str, Any]
) -> None:
    made = Rendered(cluster, "api.enabled=true", *(f"{place}{value}" for value in values))

    fields = ("hostNetwork", "dnsPolicy", "dnsConfig")
    by_name = {
        one: {key: value for key, value in made.pod(one)["spec"].items() if key in fields}
        for one in ("rlfleet", "rlfleet-api")
    }
    assert by_name == {"rlfleet": {}, "rlfleet-api": {}} | {name: expected}


@EACH_POD
def test_a_pod_in_the_network_of_the_node_gives_its_port_to_the_next_one(
    cluster: Cluster, place: str, name: str
) -> None:
    values = ("api.enabled=true", f"{place}hostNetwork=true")
    replaced = Rendered(cluster, *values).one("Deployment", name)["spec"]
    given = Rendered(cluster, *values, f'{place}strategy={{"type":"Recreate"}}')

    assert replaced["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    assert given.one("Deployment", name)["spec"]["strategy"] == {"type": "Recreate"}


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


@EACH_POD
@pytest.mark.parametrize(
    ("values", "mounted"),
    [
        ((), (True, None)),
        (("serviceAccount.automountServiceAccountToken=false",), (False, None)),
        (("automountServiceAccountToken=false",), (True, False)),
        (
            (
                "serviceAccount.automountServiceAccountToken=false",
                "automountServiceAccountToken=true",
            ),
            (False, True),
        ),
    ],
)
def test_accounts_and_pods_say_whether_the_token_is_mounted(
    cluster: Cluster,
    place: str,
    name: str,
    values: tuple[str, ...],
    mounted: tuple[bool, bool | None],
) -> None:
    made = Rendered(cluster, "api.enabled=true", *(f"{place}{value}" for value in values))

    of_account = made.one("ServiceAccount", name)["automountServiceAccountToken"]
    assert (of_account, made.pod(name)["spec"].get("automountServiceAccountToken")) == mounted


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
