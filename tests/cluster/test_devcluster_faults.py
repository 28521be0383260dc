"""Faults on demand: components die and come back, nodes are lost."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import pytest
from tests.cluster.devcluster_app import APP_MOUNTS, apply, deployment, load_app, service

from devcluster import Cluster, DevclusterError
from devcluster.waiting import wait_until

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _pod_that_answers(port: int) -> str:
    with _OPENER.open(f"http://127.0.0.1:{port}/", timeout=30) as answer:
        name: str = json.load(answer)["pod"]
        return name


def _component(cluster: Cluster, name: str) -> dict[str, object]:
    components = cluster.status()["nodes"]["1"]["components"]
    return next(each for each in components if each["name"] == name)


@pytest.fixture
def app(devcluster_node: Cluster, devcluster_namespace: str) -> int:
    """A server behind a Service; the port on the machine."""
    apply(devcluster_node, devcluster_namespace, deployment("app", 1), service("app"))
    rollout = ("rollout", "status", "deployment/app", "--timeout=30s")
    devcluster_node.kubectl(*rollout, "-n", devcluster_namespace)
    return devcluster_node.forward(devcluster_namespace, "app", 80)


def test_a_killed_api_server_stays_down_until_restarted_and_keeps_everything(
    devcluster_node: Cluster, app: int
) -> None:
    pod = _pod_that_answers(app)
    devcluster_node.kill("kube-apiserver")

    assert not devcluster_node.api.is_ready()
    refused = devcluster_node.kubectl("get", "nodes", check=False)
    assert "was refused" in refused.stderr
    assert _pod_that_answers(app) == pod
    devcluster_node.restart("kube-apiserver")
    assert "node-1" in devcluster_node.kubectl("get", "nodes").stdout
    assert _pod_that_answers(app) == pod


@pytest.mark.parametrize("name", ["containerd", "kubelet"])
def test_pods_survive_the_death_of_what_started_them(
    devcluster_node: Cluster, devcluster_namespace: str, app: int, name: str
) -> None:
    pod = _pod_that_answers(app)
    devcluster_node.kill(name)
    assert _pod_that_answers(app) == pod
    devcluster_node.restart(name)

    assert _pod_that_answers(app) == pod
    scale = ("scale", "deployment/app", "--replicas=2")
    devcluster_node.kubectl(*scale, "-n", devcluster_namespace)
    rollout = ("rollout", "status", "deployment/app", "--timeout=60s")
    devcluster_node.kubectl(*rollout, "-n", devcluster_namespace)


def test_a_component_that_dies_by_itself_is_started_again(devcluster_node: Cluster) -> None:
    before = _component(devcluster_node, "kube-scheduler")
    devcluster_node.exec(["kill", "-9", str(before["pid"])])

    def is_back() -> bool:
        now = _component(devcluster_node, "kube-scheduler")
        return now["ready"] is True and now["starts"] == int(str(before["starts"])) + 1

    wait_until(is_back, 60.0, "the scheduler to be started again")


@pytest.fixture
def two_nodes(devcluster_node_possible: None) -> Iterator[Cluster]:
    with Cluster.start(nodes=2, mounts=APP_MOUNTS) as cluster:
        load_app(cluster)
        yield cluster


@pytest.mark.long
def test_pods_spread_over_two_nodes_and_the_loss_of_one_is_noticed(two_nodes: Cluster) -> None:
    spread = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "app"}},
            }
        ]
    }
    apply(two_nodes, "default", deployment("app", 2, **spread), service("app"))
    two_nodes.kubectl("rollout", "status", "deployment/app", "--timeout=30s")
    pods = json.loads(two_nodes.kubectl("get", "pods", "-o", "json").stdout)["items"]
    node_of = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in pods}
    port = two_nodes.forward("default", "app", 80)

    assert sorted(node_of.values()) == ["node-1", "node-2"]
    answered: set[str] = set()
    # Through the Service, from node 1: pods of both nodes answer.

    def both_answered() -> bool:
        answered.add(_pod_that_answers(port))
        return answered == set(node_of)

    wait_until(both_answered, 60.0, "an answer from either node")
    # Names resolve and Services answer on the second node too.
    url = "http://app.default.svc.cluster.local/"
    program = ["python3", "-c", f"import urllib.request as u; print(u.urlopen({url!r}).read())"]
    assert "hello from the image" in two_nodes.exec(program, node=2).stdout
    logs = [two_nodes.kubectl("logs", name).stdout for name in node_of]
    assert logs == ["serving\n", "serving\n"]

    two_nodes.kill_node(2)

    gone = ("wait", "--for=condition=Ready=Unknown", "node/node-2", "--timeout=30s")
    two_nodes.kubectl(*gone)
    slices = ("get", "endpointslices", "-l", "kubernetes.io/service-name=app", "-o", "json")

    def ready_endpoints() -> list[str]:
        found = json.loads(two_nodes.kubectl(*slices).stdout)["items"]
        endpoints = [endpoint for each in found for endpoint in each["endpoints"]]
        return [e["nodeName"] for e in endpoints if e["conditions"]["ready"]]

    wait_until(lambda: ready_endpoints() == ["node-1"], 60.0, "the endpoint to be taken out")
    survivor = next(name for name, node in node_of.items() if node == "node-1")
    wait_until(lambda: _pod_that_answers_or_none(port) == survivor, 60.0, "the rules to follow")
    assert {_pod_that_answers(port) for _ in range(8)} == {survivor}
    assert two_nodes.status()["nodes"]["2"]["pid"] is None
    with pytest.raises(DevclusterError, match="node-2 is gone"):
        two_nodes.exec(["true"], node=2)


def _pod_that_answers_or_none(port: int) -> str | None:
    try:
        return _pod_that_answers(port)
    except OSError:
        return None
