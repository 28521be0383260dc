"""Pods run as on any node: images, users, volumes, accounts, Services, names, and the way in.

Faults on demand: components die and come back. These tests are in one file, so that one process starts the node.
"""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path

import pytest
from tests.cluster.devcluster_app import PYTHON, apply, deployment, pod, service
from tests.cluster.devcluster_traces import SETTINGS_AT_START, kernel_settings

from devcluster import Cluster, DevclusterError
from devcluster.errors import CommandError
from devcluster.waiting import wait_until

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def _read(port: int, path: str = "/") -> bytes:
    with _OPENER.open(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        content: bytes = answer.read()
        return content


def _write(port: int, path: str, content: bytes) -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=content, method="PUT")
    with _OPENER.open(request, timeout=10) as answer:
        said: bytes = answer.read()
        return said


def _wait_ready(cluster: Cluster, namespace: str, what: str) -> None:
    kind, _, _ = what.partition("/")
    wait = (
        ("rollout", "status", what)
        if kind == "deployment"
        else ("wait", "--for=condition=Ready", what)
    )
    cluster.kubectl(*wait, "--timeout=30s", "-n", namespace)


@pytest.fixture
def app(devcluster_node: Cluster, devcluster_namespace: str) -> int:
    """A server behind a Service; the port on the machine."""
    apply(devcluster_node, devcluster_namespace, deployment("app", 1), service("app"))
    _wait_ready(devcluster_node, devcluster_namespace, "deployment/app")
    return devcluster_node.forward(devcluster_namespace, "service/app", 80)


def test_a_read_only_root_refuses_writing_and_its_volumes_take_it(
    devcluster_node: Cluster, devcluster_namespace: str
) -> None:
    volumes = {
        "volumes": [{"name": "scratch", "emptyDir": {}}],
        "container": {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]},
    }
    apply(devcluster_node, devcluster_namespace, pod("app", **volumes))
    _wait_ready(devcluster_node, devcluster_namespace, "pod/app")
    port = devcluster_node.forward(devcluster_namespace, "pod/app", 8000)

    assert _write(port, "/opt/x", b"x") == os.strerror(30).encode()
    assert _write(port, f"{Path(PYTHON).parent}/x", b"x") == os.strerror(30).encode()
    assert _write(port, "/scratch/x", b"content") == b"written"
    assert _write(port, "/dev/shm/x", b"content") == b"written"  # noqa: S108 - in the pod
    assert _read(port, "/scratch/x") == b"content"


def test_nothing_inside_can_reach_the_machines_network(
    devcluster_node: Cluster, devcluster_namespace: str
) -> None:
    links = devcluster_node.exec(["ls", "/sys/class/net"]).stdout.split()
    routes = devcluster_node.exec(["ip", "route", "show", "default"]).stdout

    assert {link for link in links if not link.startswith("veth")} <= {
        "lo",
        "cni0",
        "bonding_masters",
    }
    assert routes == ""


def test_a_forward_carries_megabytes_both_ways_and_stays_the_same_when_asked_again(
    devcluster_node: Cluster, devcluster_namespace: str
) -> None:
    memory = {
        "volumes": [{"name": "big", "emptyDir": {"medium": "Memory"}}],
        "container": {"volumeMounts": [{"name": "big", "mountPath": "/big"}]},
    }
    apply(devcluster_node, devcluster_namespace, pod("app", **memory))
    _wait_ready(devcluster_node, devcluster_namespace, "pod/app")
    port = devcluster_node.forward(devcluster_namespace, "pod/app", 8000)
    content = os.urandom(1 << 20) * 16

    assert _write(port, "/big/file", content) == b"written"
    assert _read(port, "/big/file") == content
    assert devcluster_node.forward(devcluster_namespace, "pod/app", 8000) == port


def test_a_forward_to_what_does_not_listen_resets_the_connection(
    devcluster_node: Cluster, app: int, devcluster_namespace: str
) -> None:
    del app
    name = devcluster_node.kubectl("get", "pods", "-o", "name", "-n", devcluster_namespace)
    port = devcluster_node.forward(devcluster_namespace, name.stdout.split()[0], 8001)

    with (
        pytest.raises(ConnectionResetError),
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
    ):
        connection.recv(1)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        pytest.param("service/nothing", "does not exist", id="a Service that is not there"),
        pytest.param("pod/nothing", "does not exist", id="a pod that is not there"),
        pytest.param("deployment/app", "deployment", id="a kind that has no address"),
    ],
)
def test_forwarding_says_what_is_wrong_with_its_target(
    devcluster_node: Cluster, target: str, words: str
) -> None:
    with pytest.raises(DevclusterError, match=words):
        devcluster_node.forward("default", target, 80)


def test_a_program_inside_has_the_callers_folder_and_its_failure_is_reported(
    devcluster_node: Cluster,
) -> None:
    assert devcluster_node.exec(["pwd"]).stdout.strip() == str(Path.cwd())
    assert devcluster_node.exec(["cat"], stdin="through").stdout == "through"
    with pytest.raises(CommandError, match=r"exit code 3\ncame apart"):
        devcluster_node.exec(["sh", "-c", "echo came apart >&2; exit 3"])


def test_a_program_inside_that_takes_too_long_is_killed_with_all_it_started(
    devcluster_node: Cluster,
) -> None:
    with pytest.raises(CommandError, match="not done after 1 s"):
        devcluster_node.exec(["sh", "-c", "sleep 987 & wait"], timeout_seconds=1.0)

    def is_gone() -> bool:
        return "sleep 987" not in devcluster_node.exec(["ps", "-eo", "args"]).stdout

    # A killed process ends when a processor is free for it.
    wait_until(is_gone, 60.0, "all that it started to end")


def test_gpus_are_numbers_that_the_scheduler_respects(
    devcluster_node: Cluster, devcluster_namespace: str
) -> None:
    devcluster_node.set_gpus(2)
    one_gpu = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    names = ("first", "second", "third")
    apply(devcluster_node, devcluster_namespace, *(pod(name, container=one_gpu) for name in names))

    def waiting() -> list[str]:
        pods = devcluster_node.kubectl("get", "pods", "-n", devcluster_namespace, "-o", "json")
        found = []
        for each in json.loads(pods.stdout)["items"]:
            conditions = each["status"].get("conditions", [])
            found += [c["message"] for c in conditions if c.get("reason") == "Unschedulable"]
        return found

    wait_until(waiting, 60.0, "one pod to be refused a GPU")
    ready = ("wait", "--for=jsonpath={.status.phase}=Running", "pods", "--all", "--timeout=0s")
    wait_until(
        lambda: (
            devcluster_node.kubectl(*ready, "-n", devcluster_namespace, check=False).stdout.count(
                "condition met"
            )
            == 2
        ),
        60.0,
        "two pods to run",
    )
    assert [message for message in waiting() if "Insufficient nvidia.com/gpu" in message]
    assert len(waiting()) == 1


def test_a_node_changes_no_kernel_setting_of_the_machine(devcluster_node: Cluster) -> None:
    inside = devcluster_node.exec(["cat", "/proc/sys/kernel/panic"]).stdout

    assert inside == "10\n"  # what the kubelet wants to have
    now = kernel_settings()
    # A part of the kernel that is loaded meanwhile brings settings, and changes none.
    assert {name: now[name] for name in SETTINGS_AT_START} == SETTINGS_AT_START


# --- faults --------------------------------------------------------------------------------------


def _component(cluster: Cluster, name: str) -> dict[str, object]:
    components = cluster.status()["nodes"]["1"]["components"]
    return next(each for each in components if each["name"] == name)


def test_a_killed_api_server_stays_down_until_restarted_and_keeps_everything(
    devcluster_node: Cluster, app: int
) -> None:
    answer = _read(app)
    devcluster_node.kill("kube-apiserver")

    assert not devcluster_node.api.is_ready()
    refused = devcluster_node.kubectl("get", "nodes", check=False)
    assert "was refused" in refused.stderr
    assert _read(app) == answer
    devcluster_node.restart("kube-apiserver")
    assert "node-1" in devcluster_node.kubectl("get", "nodes").stdout
    assert _read(app) == answer


@pytest.mark.long
@pytest.mark.parametrize("name", ["containerd", "kubelet"])
def test_pods_survive_the_death_of_what_started_them(
    devcluster_node: Cluster, devcluster_namespace: str, app: int, name: str
) -> None:
    answer = _read(app)
    devcluster_node.kill(name)
    assert _read(app) == answer
    devcluster_node.restart(name)

    assert _read(app) == answer
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
