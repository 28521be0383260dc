"""The RL API in the chart, rendered by the real helm."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cluster.test_operator_chart import CHART, Rendered, rights

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_api.settings import parse_settings

ACCOUNT = "rlfleet-api"
RIGHTS = {
    ("authentication.k8s.io", "tokenreviews", "create"),
    ("authorization.k8s.io", "subjectaccessreviews", "create"),
    ("rlfleet.dev", "inferencefleets", "get"),
    *(("rlfleet.dev", "weightversions", verb) for verb in ("get", "list", "watch", "patch")),
    ("", "pods", "list"),
    ("", "services", "get"),
}


@pytest.fixture(scope="module")
def chart(devcluster_api: Cluster) -> Rendered:
    return Rendered(devcluster_api, "api.enabled=true")


def test_helm_lint_accepts_the_chart_with_the_rl_api(devcluster_api: Cluster) -> None:
    answer = devcluster_api.helm("lint", "--strict", str(CHART), "--set-json", "api.enabled=true")

    assert "0 chart(s) failed" in answer.stdout


def test_the_account_has_exactly_the_rights_of_its_requests(chart: Rendered) -> None:
    roles = [r for r in chart.all("ClusterRole") if ACCOUNT in r["metadata"]["name"]]

    assert set().union(*(rights(role) for role in roles)) == RIGHTS


def test_without_the_value_the_chart_renders_no_rl_api(devcluster_api: Cluster) -> None:
    named = [o["metadata"]["name"] for o in Rendered(devcluster_api).objects]

    assert [name for name in named if ACCOUNT in name] == []


def test_with_namespaces_the_account_reads_no_fleet_elsewhere(devcluster_api: Cluster) -> None:
    made = Rendered(devcluster_api, "api.enabled=true", 'watchNamespaces=["a"]')
    everywhere = [r for r in made.all("ClusterRole") if ACCOUNT in r["metadata"]["name"]]
    (there,) = (r for r in made.all("Role") if r["metadata"]["name"] == ACCOUNT)

    assert [r["metadata"]["name"] for r in everywhere] == [f"{ACCOUNT}-reviews"]
    assert there["metadata"]["namespace"] == "a"
    assert rights(there) == {r for r in RIGHTS if r[2] != "create"}


@pytest.mark.parametrize(
    ("value", "setting"),
    [("keysSecret", "keys_folder"), ("publicKeysSecret", "public_keys_folder")],
)
def test_keys_come_from_a_secret_that_the_account_need_not_read(
    devcluster_api: Cluster, value: str, setting: str
) -> None:
    made = Rendered(devcluster_api, "api.enabled=true", f'api.{value}="keys"')
    (container,) = made.pod(ACCOUNT)["spec"]["containers"]
    (mount,) = container["volumeMounts"]

    assert getattr(parse_settings(container["args"]), setting) == Path(mount["mountPath"])
    assert made.pod(ACCOUNT)["spec"]["volumes"][0]["secret"] == {"secretName": "keys"}


def test_the_rl_api_reads_the_tokens_of_the_named_external_fleets_and_no_other_secret(
    devcluster_api: Cluster,
) -> None:
    made = Rendered(devcluster_api, "api.enabled=true", 'api.externalFleets=["rl/policy","a/b"]')
    on_secrets = {
        (role["metadata"].get("namespace"), *rule.get("resourceNames", ["all of them"]))
        for kind in ("Role", "ClusterRole")
        for role in made.all(kind)
        if ACCOUNT in role["metadata"]["name"]
        for rule in role["rules"]
        if "secrets" in rule["resources"]
    }
    bound = {
        (one["metadata"]["namespace"], one["roleRef"]["name"]) for one in made.all("RoleBinding")
    }
    settings = parse_settings(made.container(ACCOUNT)["args"])

    assert on_secrets == {("rl", "policy-admin-token"), ("a", "b-admin-token")}
    assert {("rl", f"{ACCOUNT}-control-policy"), ("a", f"{ACCOUNT}-control-b")} <= bound
    assert settings.external_fleets == (("rl", "policy"), ("a", "b"))


def test_a_replica_is_confined_and_probed_as_the_operator_is(chart: Rendered) -> None:
    ours, operator = chart.container(ACCOUNT), chart.container()

    assert ours["securityContext"] == operator["securityContext"]
    assert chart.pod(ACCOUNT)["spec"]["securityContext"] == chart.pod()["spec"]["securityContext"]
    assert ours["image"] == operator["image"]
    assert (
        ours["livenessProbe"]["httpGet"]["path"],
        ours["readinessProbe"]["httpGet"]["path"],
    ) == (
        "/livez",
        "/readyz",
    )


def test_the_service_and_the_budget_are_about_its_pods_and_not_the_operators(
    chart: Rendered,
) -> None:
    own = chart.pod(ACCOUNT)["metadata"]["labels"]
    selectors = [
        chart.one("Service", ACCOUNT)["spec"]["selector"],
        chart.one("PodDisruptionBudget", ACCOUNT)["spec"]["selector"]["matchLabels"],
    ]

    for selector in selectors:
        assert selector.items() <= own.items()
        assert not selector.items() <= chart.pod()["metadata"]["labels"].items()


def test_the_arguments_are_flags_of_the_process(chart: Rendered) -> None:
    settings = parse_settings(chart.container(ACCOUNT)["args"])

    assert (settings.port, settings.audiences, settings.keys_folder) == (8090, ("rlfleet",), None)


def test_tokens_for_the_api_server_without_a_certificate_are_refused(
    devcluster_api: Cluster,
) -> None:
    for_the_api_server = ("api.enabled=true", "api.audiences=[]")
    with pytest.raises(CommandError, match=r"api\.tls\.secretName"):
        Rendered(devcluster_api, *for_the_api_server)

    made = Rendered(devcluster_api, *for_the_api_server, 'api.tls.secretName="certificate"')
    assert parse_settings(made.container(ACCOUNT)["args"]).audiences == ()


def test_probes_have_a_port_of_their_own(chart: Rendered) -> None:
    container = chart.container(ACCOUNT)
    (port,) = (p for p in container["ports"] if p["name"] == "probes")
    probes = {k: container[f"{k}Probe"]["httpGet"] for k in ("startup", "liveness", "readiness")}

    assert parse_settings(container["args"]).probe_port == port["containerPort"]
    assert {k: (p["path"], p["port"]) for k, p in probes.items()} == {
        "startup": ("/livez", "probes"),
        "liveness": ("/livez", "probes"),
        "readiness": ("/readyz", "probes"),
    }


def test_with_a_certificate_the_port_is_https(devcluster_api: Cluster) -> None:
    made = Rendered(devcluster_api, "api.enabled=true", 'api.tls.secretName="certificate"')
    container = made.container(ACCOUNT)
    (mount,) = container["volumeMounts"]
    settings = parse_settings(container["args"])

    assert {str(settings.tls_cert), str(settings.tls_key)} == {
        f"{mount['mountPath']}/{file}" for file in ("tls.crt", "tls.key")
    }
    # A subPath would never change in a running pod.
    assert "subPath" not in mount
    assert made.pod(ACCOUNT)["spec"]["volumes"][0]["secret"] == {"secretName": "certificate"}


def test_the_metrics_of_the_rl_api_have_their_own_scrape(devcluster_api: Cluster) -> None:
    made = Rendered(devcluster_api, "api.enabled=true", "metrics.serviceMonitor.enabled=true")
    service = made.one("Service", f"{ACCOUNT}-metrics")
    (port,) = service["spec"]["ports"]
    monitor = made.one("ServiceMonitor", ACCOUNT)["spec"]
    operators = made.one("ServiceMonitor")["spec"]["selector"]["matchLabels"]

    assert service["spec"]["selector"].items() <= made.pod(ACCOUNT)["metadata"]["labels"].items()
    (named,) = (p for p in made.container(ACCOUNT)["ports"] if p["name"] == port["targetPort"])
    assert parse_settings(made.container(ACCOUNT)["args"]).metrics_port == named["containerPort"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [endpoint["port"] for endpoint in monitor["endpoints"]] == [port["name"]]
    assert not operators.items() <= service["metadata"]["labels"].items()


def test_the_policy_of_workers_admits_it_to_each_port_since_namespaces_may_grant_it_calls(
    devcluster_api: Cluster,
) -> None:
    made = Rendered(
        devcluster_api,
        "api.enabled=true",
        "networkPolicy.enabled=true",
        'watchNamespaces=["rl"]',
        'networkPolicy.clientsFrom=[{"podSelector":{}}]',
    )
    policy = made.one("NetworkPolicy", "rlfleet-workers")
    own = made.pod(ACCOUNT)["metadata"]["labels"].items()
    admitted = {
        rule["ports"][0]["port"]
        for rule in policy["spec"]["ingress"]
        for peer in rule["from"]
        if own >= peer["podSelector"].get("matchLabels", {"": ""}).items()
    }

    assert admitted == {"admin", "http", "metrics"}
