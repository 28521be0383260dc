"""The chart, rendered by the real helm and judged by a real API server."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.support.namespaces import scratch_namespace
from tests.cluster.support.workspace import Release
from tests.support.builders import build_pod, make_fleet
from tests.support.documents import samples

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_operator.runtime import permissions
from fleet_operator.runtime.settings import parse_settings
from rlfleet_resources import names

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts/rlfleet"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
NAMESPACE = "rlfleet-system"
Right = tuple[str, str, str]
"""Group, resource and verb."""


class Rendered:
    """The chart's objects, by kind and name."""

    def __init__(self, cluster: Cluster, *values: str) -> None:
        chosen = [word for value in values for word in ("--set-json", value)]
        text = cluster.helm("template", "rlfleet", str(CHART), "-n", NAMESPACE, *chosen).stdout
        self.objects = [o for o in yaml.safe_load_all(text) if o]

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [o for o in self.objects if o["kind"] == kind]

    def one(self, kind: str, name: str = "rlfleet") -> dict[str, Any]:
        (found,) = (o for o in self.all(kind) if o["metadata"]["name"] == name)
        return found

    def pod(self, name: str = "rlfleet") -> dict[str, Any]:
        return self.one("Deployment", name)["spec"]["template"]

    def container(self, name: str = "rlfleet") -> dict[str, Any]:
        (container,) = self.pod(name)["spec"]["containers"]
        return container


def rights(role: dict[str, Any]) -> set[Right]:
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


NEEDED = {(g, resource, verb) for g, resource, verbs in permissions.NEEDED for verb in verbs}
LEASE = {(permissions.LEASE_GROUP, "leases", verb) for verb in permissions.LEASE_VERBS}
HEARTBEAT = {(permissions.LEASE_GROUP, "leases", verb) for verb in permissions.HEARTBEAT_VERBS}


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    return devcluster_api


@pytest.fixture(scope="module")
def rendered(cluster: Cluster) -> Rendered:
    return Rendered(cluster)


def test_helm_lint_accepts_the_chart(cluster: Cluster) -> None:
    assert "0 chart(s) failed" in cluster.helm("lint", "--strict", str(CHART)).stdout


def test_the_operator_may_exactly_what_it_needs(rendered: Rendered) -> None:
    assert rights(rendered.one("ClusterRole")) == NEEDED | HEARTBEAT


def test_of_leases_it_may_only_write_its_own_heartbeat(rendered: Rendered) -> None:
    rules = [r for r in rendered.one("ClusterRole")["rules"] if r["resources"] == ["leases"]]

    assert {tuple(r["verbs"]): r.get("resourceNames") for r in rules} == {
        ("get",): None,
        permissions.HEARTBEAT_VERBS: [names.heartbeat_name(f"{NAMESPACE}/rlfleet")],
    }


def test_with_named_fleets_it_may_read_their_admin_tokens_and_no_other_secret(
    cluster: Cluster,
) -> None:
    made = Rendered(cluster, 'rbac.secretsOf=["a/policy","b/judge"]')
    (wide,) = (r for r in made.one("ClusterRole")["rules"] if r["resources"] == ["secrets"])
    roles = [r for r in made.all("Role") if "-secret-" in r["metadata"]["name"]]

    assert wide["verbs"] == ["create"]
    assert {(r["metadata"]["namespace"], *r["rules"][0]["resourceNames"]) for r in roles} == {
        ("a", "policy-admin-token"),
        ("b", "judge-admin-token"),
    }
    assert set().union(*map(rights, roles)) == {("", "secrets", "get")}
    bound = {b["roleRef"]["name"] for b in made.all("RoleBinding")}
    assert {r["metadata"]["name"] for r in roles} <= bound
    settings = parse_settings(made.container()["args"])
    assert settings.secrets_of == (("a", "policy"), ("b", "judge"))
    with pytest.raises(CommandError, match="watchNamespaces lacks a"):
        Rendered(cluster, 'rbac.secretsOf=["a/policy"]', 'watchNamespaces=["b"]')


def test_with_namespaces_it_may_the_same_there_and_nothing_elsewhere(cluster: Cluster) -> None:
    there = Rendered(cluster, 'watchNamespaces=["a","b"]')
    roles = [r for r in there.all("Role") if r["metadata"]["name"] == "rlfleet"]
    bindings = [b for b in there.all("RoleBinding") if b["metadata"]["name"] == "rlfleet"]

    needed = NEEDED | HEARTBEAT
    assert {r["metadata"]["namespace"]: rights(r) for r in roles} == {"a": needed, "b": needed}
    assert {b["metadata"]["namespace"] for b in bindings} == {"a", "b"}
    assert there.all("ClusterRoleBinding") == []
    assert "rlfleet" not in {r["metadata"]["name"] for r in there.all("ClusterRole")}


def test_the_lease_is_its_own_one_in_its_own_namespace(rendered: Rendered) -> None:
    role = rendered.one("Role", "rlfleet-lease")
    by_name = [rule for rule in role["rules"] if rule["verbs"] != ["create"]]

    assert rights(role) == LEASE
    assert role["metadata"]["namespace"] == NAMESPACE
    assert [rule["resourceNames"] for rule in by_name] == [["rlfleet"]]
    assert "--lease-name=rlfleet" in rendered.container()["args"]


@pytest.mark.parametrize("values", [(), ('watchNamespaces=["a"]',)], ids=["everywhere", "in one"])
def test_rights_are_given_to_the_operators_account_alone(cluster: Cluster, values) -> None:
    made = Rendered(cluster, *values)
    account = made.one("ServiceAccount")["metadata"]["name"]
    bindings = made.all("ClusterRoleBinding") + made.all("RoleBinding")
    roles = {
        (r["kind"], r["metadata"].get("namespace"), r["metadata"]["name"])
        for r in made.all("ClusterRole") + made.all("Role")
    }

    assert made.pod()["spec"]["serviceAccountName"] == account
    assert bindings
    for binding in bindings:
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": account, "namespace": NAMESPACE}
        ]
        reference = binding["roleRef"]
        place = binding["metadata"].get("namespace")
        assert (reference["kind"], place, reference["name"]) in roles


def test_user_roles_get_rights_on_fleets_and_on_nothing_else(rendered: Rendered) -> None:
    view, edit = (
        rendered.one("ClusterRole", "rlfleet-view"),
        rendered.one("ClusterRole", "rlfleet-edit"),
    )
    plurals = {names.FLEET_PLURAL, names.WEIGHTS_PLURAL}

    assert {(g, r) for g, r, _ in rights(view)} == {(names.GROUP, p) for p in plurals}
    assert {v for _, _, v in rights(view)} == {"get", "list", "watch"}
    assert {g for g, _, _ in rights(edit)} == {names.GROUP}
    assert {r.partition("/")[0] for _, r, _ in rights(edit)} == plurals
    assert not any(r.endswith("/status") for _, r, _ in rights(edit))


@pytest.mark.parametrize("part", ["", "api."], ids=["operator", "RL API"])
def test_an_account_of_others_must_be_named(cluster: Cluster, part: str) -> None:
    with pytest.raises(CommandError, match=f"{part}serviceAccount.name is needed"):
        Rendered(cluster, f"{part}serviceAccount.create=false", "api.enabled=true")


def test_the_operator_understands_its_arguments(cluster: Cluster) -> None:
    made = Rendered(
        cluster,
        'watchNamespaces=["a","b"]',
        'log={"format":"text","level":"DEBUG"}',
        "resyncSeconds=7",
        'tracing.otlpEndpoint="http://collector.monitoring:4318"',
        'worker.image="w:1"',
    )
    settings = parse_settings(made.container()["args"])

    assert settings.namespaces == ("a", "b")
    assert (settings.log_format, settings.log_level) == ("text", "DEBUG")
    assert (settings.resync_seconds, settings.default_image) == (7, "w:1")
    assert settings.lease_name == "rlfleet"
    assert settings.otlp_endpoint == "http://collector.monitoring:4318"


def test_probes_ask_the_port_that_the_operator_opens(rendered: Rendered) -> None:
    container = rendered.container()
    settings = parse_settings(container["args"])
    (port,) = (p for p in container["ports"] if p["name"] == "probes")
    paths = {
        kind: container[kind]["httpGet"]["path"]
        for kind in ("startupProbe", "livenessProbe", "readinessProbe")
    }

    assert port["containerPort"] == settings.probe_port
    assert {container[kind]["httpGet"]["port"] for kind in paths} == {port["name"]}
    assert paths == {
        "startupProbe": "/livez",
        "livenessProbe": "/livez",
        "readinessProbe": "/readyz",
    }


def test_selectors_find_the_operators_pods(rendered: Rendered) -> None:
    labels = rendered.pod()["metadata"]["labels"].items()

    for kind in ("Deployment", "PodDisruptionBudget"):
        assert rendered.one(kind)["spec"]["selector"]["matchLabels"].items() <= labels


@pytest.mark.parametrize(
    ("keep", "policy"), [("true", {"helm.sh/resource-policy": "keep"}), ("false", {})]
)
def test_crds_are_those_of_the_repository_and_kept_if_wanted(
    cluster: Cluster, keep: str, policy: dict[str, str]
) -> None:
    made = Rendered(cluster, f"crds.keep={keep}")
    found = {crd["metadata"]["name"]: crd for crd in made.all("CustomResourceDefinition")}

    assert len(found) == 2
    for file in sorted((ROOT / "crds").glob("*.yaml")):
        expected = yaml.safe_load(file.read_text())
        crd = found[expected["metadata"]["name"]]
        assert (crd["metadata"].pop("annotations", None) or {}) == policy
        assert crd == expected


# --- values -------------------------------------------------------------------------------------


def leaves(node: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, value in node.items():
        yield f"{path}{key}"
        if isinstance(value, dict):
            yield from leaves(value, f"{path}{key}.")


def described(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for key, node in schema.get("properties", {}).items():
        yield f"{path}{key}"
        yield from described(node, f"{path}{key}.")


def test_every_value_has_a_schema_and_every_schema_a_value() -> None:
    free = {"global"}  # helm's own; parents hand it down
    opened = tuple(f"{key}." for key in described(SCHEMA))
    values = set(leaves(VALUES))
    known = set(described(SCHEMA)) - free

    assert known <= values
    assert {v for v in values - known if not v.startswith(opened)} == set()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("replicas=2", "replicas"),
        ('image.repo="x"', "repo"),
        ("crds.keepit=true", "keepit"),
        ('log.colour="red"', "colour"),
        ('replicaCount="two"', "replicaCount"),
        ("replicaCount=11", "replicaCount"),
        ("replicaCount=-1", "replicaCount"),
        ('image.repository=""', "repository"),
        ('image.pullPolicy="Often"', "pullPolicy"),
        ('crds.keep="yes"', "keep"),
        ("rbac.create=1", "create"),
        ('log.format="xml"', "format"),
        ('log.level="TRACE"', "level"),
        ("resyncSeconds=0", "resyncSeconds"),
        ('watchNamespaces="rl"', "watchNamespaces"),
        ('watchNamespaces=["Not A Name"]', "watchNamespaces"),
        ('watchNamespaces=["a","a"]', "watchNamespaces"),
        ('podLabels={"a":1}', "podLabels"),
        ('serviceAccount.annotations={"a":1}', "annotations"),
        ('metrics.service.annotations={"prometheus.io/port":8080}', "annotations"),
        ('metrics.dashboards.labels={"grafana_dashboard":1}', "labels"),
        ('metrics.prometheusRule.alertLabels={"priority":1}', "alertLabels"),
        ('fullnameOverride="Bad_Name"', "fullnameOverride"),
        ('namespaceOverride="Bad.Name"', "namespaceOverride"),
        ('dnsPolicy="Best"', "dnsPolicy"),
        ('api.dnsPolicy="Best"', "dnsPolicy"),
        ('hostNetwork="yes"', "hostNetwork"),
        ('serviceAccount.automountServiceAccountToken="no"', "automountServiceAccountToken"),
        ('podDisruptionBudget.minAvailable="half"', "minAvailable"),
        ("api.podDisruptionBudget.maxUnavailable=-1", "maxUnavailable"),
        ("port=0", "port"),
        ("tolerations={}", "tolerations"),
        ("imagePullSecrets=[{}]", "imagePullSecrets"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(cluster: Cluster, value: str, message: str) -> None:
    with pytest.raises(CommandError, match=message) as refused:
        Rendered(cluster, value)

    assert "don't meet the specifications of the schema" in str(refused.value)


# --- what only a server can judge -------------------------------------------------------------


@pytest.fixture
def restricted(cluster: Cluster) -> Iterator[str]:
    """A namespace with the strictest of Kubernetes' own rules for pods."""
    with scratch_namespace(cluster) as name:
        rule = "pod-security.kubernetes.io/enforce=restricted"
        cluster.kubectl("label", "namespace", name, rule)
        yield name


def admitted(cluster: Cluster, namespace: str, pod: dict[str, Any]):
    arguments = ("create", "-n", namespace, "--dry-run=server", "-f", "-")
    return cluster.kubectl(*arguments, stdin=json.dumps(pod), check=False)


def test_the_operators_pod_is_taken_where_only_restricted_pods_are(
    cluster: Cluster, restricted: str, rendered: Rendered
) -> None:
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(rendered.pod())}
    pod["metadata"]["name"] = "operator"
    pod["spec"] |= {"serviceAccountName": "default"}
    taken = admitted(cluster, restricted, pod)

    assert taken.returncode == 0, taken.stderr
    del pod["spec"]["containers"][0]["securityContext"]
    refused = admitted(cluster, restricted, pod)
    assert 'violates PodSecurity "restricted' in refused.stderr


def test_a_workers_pod_is_taken_where_only_restricted_pods_are(
    cluster: Cluster, restricted: str
) -> None:
    pod = build_pod(make_fleet(replicas=1), 0, "image", revision="r")
    pod["metadata"] |= {"namespace": restricted}
    taken = admitted(cluster, restricted, pod)

    assert taken.returncode == 0, taken.stderr


@pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in samples()])
def test_a_documented_sample_is_taken(
    cluster: Cluster, release: Release, restricted: str, sample: dict[str, Any]
) -> None:
    made = copy.deepcopy(sample)
    made["metadata"]["namespace"] = restricted
    arguments = ("apply", "--dry-run=server", "--validate=strict", "-f", "-")
    done = cluster.kubectl(*arguments, stdin=json.dumps(made), check=False)

    assert done.returncode == 0, done.stderr
