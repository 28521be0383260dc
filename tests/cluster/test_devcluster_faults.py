"""Faults on demand: components die and come back, nodes are lost."""

from __future__ import annotations

import json
import urllib.request

import pytest
from tests.cluster.devcluster_app import apply, deployment, service

from devcluster import Cluster
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


@pytest.mark.long
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
