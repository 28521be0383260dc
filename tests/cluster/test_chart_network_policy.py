"""The chart's NetworkPolicies for workers and routers, rendered by helm, on a real API server.

The dev cluster has no network plugin that enforces policies. The tests show that the objects are
valid, select the right pods and name the right ports, not that a packet is held back.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cluster.support.namespaces import scratch_namespace
from tests.cluster.test_operator_chart import NAMESPACE, Rendered
from tests.support.builders import build_pod, make_fleet

from devcluster import Cluster
from devcluster.errors import CommandError
from fleet_operator.core.manifests.router import router_children

POLICY = "rlfleet-workers"
ROUTERS = "rlfleet-routers"
ON = "networkPolicy.enabled=true"
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
TRAINER = {"podSelector": {"matchLabels": {"app": "trainer"}}}


def peers_of(policy: dict[str, Any]) -> dict[str, Any]:
    """The peers that a rule admits to each port; "any peer" where it names none."""
    return {
        port["port"]: rule.get("from", "any peer")
        for rule in policy["spec"]["ingress"]
        for port in rule.get("ports", [])
    }


def worker_pod(**weights: Any) -> dict[str, Any]:
    fleet = make_fleet(replicas=1, weights={"roots": ["/weights"], **weights})
    return build_pod(fleet, 0, "image", revision="r")


@pytest.fixture(scope="module")
def cluster(devcluster_api: Cluster) -> Cluster:
    return devcluster_api


def test_the_default_values_create_no_network_policy(cluster: Cluster) -> None:
    assert Rendered(cluster, 'watchNamespaces=["rl"]').all("NetworkPolicy") == []


def test_only_the_operator_reaches_the_admin_port_and_every_client_the_public_one(
    cluster: Cluster,
) -> None:
    made = Rendered(cluster, ON, 'watchNamespaces=["rl"]')
    policy = made.one("NetworkPolicy", POLICY)
    peers = peers_of(policy)

    assert set(peers) == {"http", "admin", "peers"}, "no metrics for peers that are not named"
    assert peers["http"] == "any peer"
    assert [selected(peer) for peer in peers["peers"]] == ["rlfleet.dev/fleet"]
    ((operator,),) = (peers["admin"],)
    place = {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}}
    assert operator["namespaceSelector"] == place
    found = made.pod()["metadata"]["labels"].items()
    assert operator["podSelector"]["matchLabels"].items() <= found
    assert policy["spec"]["policyTypes"] == ["Ingress"], "workers reach out as before"


def test_the_policy_selects_workers_and_names_their_ports(cluster: Cluster) -> None:
    made = Rendered(cluster, ON, 'watchNamespaces=["rl"]', metrics_from(MONITORING))
    policy, worker = made.one("NetworkPolicy", POLICY), worker_pod(peers={"enabled": True})
    (expression,) = policy["spec"]["podSelector"]["matchExpressions"]
    (container,) = worker["spec"]["containers"]

    assert expression["operator"] == "Exists"
    assert expression["key"] in worker["metadata"]["labels"]
    assert expression["key"] not in made.pod()["metadata"]["labels"], "not the operator"
    assert set(peers_of(policy)) == {port["name"] for port in container["ports"]}


def selected(rule: dict[str, Any]) -> str:
    """The label whose pods are selected."""
    (expression,) = rule["podSelector"]["matchExpressions"]
    assert expression["operator"] == "Exists"
    return str(expression["key"])


def test_a_router_is_closed_to_peers_that_are_not_named_and_reaches_workers_and_names_only(
    cluster: Cluster,
) -> None:
    policy = Rendered(cluster, ON, 'watchNamespaces=["rl"]').one("NetworkPolicy", ROUTERS)
    deployment, _ = router_children(make_fleet(replicas=1, router={"image": "router:1"}))
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    workers, dns = policy["spec"]["egress"]

    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"]["ingress"] == []
    assert selected(policy["spec"]) in labels
    assert selected(policy["spec"]) not in worker_pod()["metadata"]["labels"]
    assert [selected(to) for to in workers["to"]] == ["rlfleet.dev/fleet"]
    assert workers["ports"] == [{"port": "http"}], "not the admin port"
    assert {port["port"] for port in dns["ports"]} == {53}


def test_named_peers_reach_a_router_and_prometheus_its_metrics(cluster: Cluster) -> None:
    policy = Rendered(
        cluster,
        ON,
        'watchNamespaces=["rl"]',
        metrics_from(MONITORING),
        f"networkPolicy.routersFrom={json.dumps([TRAINER])}",
    ).one("NetworkPolicy", ROUTERS)
    deployment, _ = router_children(make_fleet(replicas=1, router={"image": "router:1"}))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]

    assert peers_of(policy) == {"http": [TRAINER], "metrics": [MONITORING]}
    assert peers_of(policy).keys() == {port["name"] for port in container["ports"]}


def test_workers_that_admit_named_clients_admit_routers_too(cluster: Cluster) -> None:
    policy = Rendered(
        cluster,
        ON,
        'watchNamespaces=["rl"]',
        f"networkPolicy.clientsFrom={json.dumps([TRAINER])}",
    ).one("NetworkPolicy", POLICY)
    router, *others = peers_of(policy)["http"]

    assert selected(router) == "rlfleet.dev/router"
    assert others == [TRAINER]


def metrics_from(*peers: dict[str, Any]) -> str:
    return f"networkPolicy.metricsFrom={json.dumps(peers)}"


def test_further_peers_are_admitted_to_the_port_that_they_are_named_for(cluster: Cluster) -> None:
    rule = {"from": [TRAINER], "ports": [{"port": 29500, "endPort": 29600}]}
    made = Rendered(
        cluster,
        ON,
        'watchNamespaces=["rl"]',
        metrics_from(MONITORING),
        f"networkPolicy.adminFrom={json.dumps([TRAINER])}",
        f"networkPolicy.clientsFrom={json.dumps([TRAINER])}",
        f"networkPolicy.extraIngress={json.dumps([rule])}",
    )
    policy = made.one("NetworkPolicy", POLICY)
    peers = peers_of(policy)

    assert peers["http"][1:] == [TRAINER]
    assert peers["metrics"] == [MONITORING]
    assert peers["admin"][1:] == [TRAINER]
    assert policy["spec"]["ingress"][-1] == rule


@pytest.mark.parametrize(
    ("values", "namespaces"),
    [
        pytest.param(('watchNamespaces=["a","b"]',), {"a", "b"}, id="where the operator works"),
        pytest.param(('networkPolicy.namespaces=["c"]',), {"c"}, id="where fleets are"),
        pytest.param(
            ('watchNamespaces=["a","b"]', 'networkPolicy.namespaces=["b"]'),
            {"b"},
            id="in some of them",
        ),
    ],
)
def test_both_are_in_each_namespace(
    cluster: Cluster, values: tuple[str, ...], namespaces: set[str]
) -> None:
    found = Rendered(cluster, ON, *values).all("NetworkPolicy")

    places = sorted((p["metadata"]["name"], p["metadata"]["namespace"]) for p in found)
    assert places == sorted((name, n) for name in (POLICY, ROUTERS) for n in namespaces)


def test_an_operator_of_all_namespaces_has_to_be_given_those_of_the_fleets(
    cluster: Cluster,
) -> None:
    with pytest.raises(CommandError, match=r"networkPolicy\.namespaces"):
        Rendered(cluster, ON)


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("networkPolicy.enabled=1", "enabled"),
        ('networkPolicy.namespaces="rl"', "namespaces"),
        ('networkPolicy.metricsFrom=["monitoring"]', "metricsFrom"),
        ("networkPolicy.adminFrom={}", "adminFrom"),
        ("networkPolicy.routersFrom={}", "routersFrom"),
        ("networkPolicy.extraIngress=[1]", "extraIngress"),
        ("networkPolicy.from=[]", "from"),
    ],
)
def test_a_wrong_value_is_refused_by_its_name(cluster: Cluster, value: str, named: str) -> None:
    with pytest.raises(CommandError, match=named) as refused:
        Rendered(cluster, value)

    assert "don't meet the specifications of the schema" in str(refused.value)


@pytest.mark.parametrize("name", [POLICY, ROUTERS])
def test_the_server_takes_it(cluster: Cluster, name: str) -> None:
    with scratch_namespace(cluster) as namespace:
        made = Rendered(
            cluster,
            ON,
            f"networkPolicy.namespaces={json.dumps([namespace])}",
            metrics_from(MONITORING),
        ).one("NetworkPolicy", name)
        stdin = json.dumps(made)
        cluster.kubectl("apply", "--validate=strict", "-f", "-", stdin=stdin)
        read = cluster.kubectl("get", "netpol", name, "-n", namespace, "-o", "json").stdout
        kept = json.loads(read)["spec"]

    assert kept["podSelector"] == made["spec"]["podSelector"]
    assert peers_of({"spec": kept}) == peers_of(made)
