"""A cluster begins whole and ends without a trace, however it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cluster.devcluster_app import APP_MOUNTS, apply, load_app, pod
from tests.cluster.devcluster_traces import cluster_processes, machine_traces, still_running
from tests.support.programs import written_by

from devcluster import Cluster, DevclusterError, janitor, programs
from devcluster.errors import NotRunningError
from devcluster.paths import TOOLS, clusters_folder, run_folder
from devcluster.starting import random_id
from devcluster.waiting import wait_until

_STARTER = """
import sys
from devcluster import Cluster
cluster = Cluster.start(cluster_id=sys.argv[1], profile=sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def nft(devcluster_node_possible: None) -> Path:
    return programs.ensure("node").path("nft")


Starter = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def starter() -> Iterator[Starter]:
    """Runs Python programs that start clusters, and ends those that a failed test leaves."""
    started: list[subprocess.Popen[bytes]] = []

    def run(*arguments: str, until: bytes) -> subprocess.Popen[bytes]:
        """Run one until it prints a line with the given word in it."""
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=os.environ | {"PYTHONPATH": str(TOOLS)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(process)
        assert process.stdout is not None
        assert any(until in line for line in iter(process.stdout.readline, b""))
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def test_down_leaves_no_process_mount_link_group_rule_or_file(nft: Path) -> None:
    cluster_id = random_id()
    before = machine_traces(cluster_id, nft)
    with Cluster.start(cluster_id=cluster_id, mounts=APP_MOUNTS) as cluster:
        load_app(cluster)
        apply(cluster, "default", pod("app"))
        cluster.kubectl("wait", "--for=condition=Ready", "pod/app", "--timeout=30s")
        during = machine_traces(cluster_id, nft)
        processes = cluster_processes(cluster)

    # The comparison below would see something: while it ran, there was something to see.
    assert during.groups
    assert during.places > before.places
    assert len(processes) > 10
    assert still_running(processes) == frozenset()
    assert machine_traces(cluster_id, nft) == before


@pytest.mark.long
def test_killing_the_starter_ends_the_cluster_and_leaves_nothing(
    nft: Path, starter: Starter
) -> None:
    cluster_id = random_id()
    before = machine_traces(cluster_id, nft)
    process = starter("-c", _STARTER, cluster_id, "node", until=b"ready")
    processes = cluster_processes(Cluster.attach(cluster_id))

    process.kill()

    wait_until(lambda: not run_folder(cluster_id).exists(), 60.0, "the folder to be gone")
    wait_until(lambda: not still_running(processes), 60.0, "the processes to be gone")
    assert machine_traces(cluster_id, nft) == before


@pytest.mark.long
def test_killing_the_keeper_ends_the_nodes_and_the_next_command_sweeps_the_rest(
    nft: Path, starter: Starter
) -> None:
    cluster_id = random_id()
    before = machine_traces(cluster_id, nft)
    starter("-c", _STARTER, cluster_id, "api", until=b"ready")
    processes = cluster_processes(Cluster.attach(cluster_id))
    status = Cluster.attach(cluster_id).status()
    # Frozen, the node's first process cannot notice by itself that the keeper is gone.
    outer = status["nodes"]["1"]["pid"]
    first = int(Path(f"/proc/{outer}/task/{outer}/children").read_text())
    os.kill(first, signal.SIGSTOP)

    os.kill(status["keeper"], signal.SIGKILL)

    wait_until(lambda: not still_running(processes), 60.0, "the kernel to end the nodes")
    janitor.sweep()
    # Any command sweeps: one may have come before and still run.
    wait_until(lambda: machine_traces(cluster_id, nft) == before, 60.0, "the rest to be swept")


@pytest.mark.long
def test_two_clusters_at_once_do_not_see_each_other(
    devcluster_node: Cluster, devcluster_namespace: str
) -> None:
    with Cluster.start(mounts=APP_MOUNTS) as other:
        load_app(other)
        for cluster, namespace in ((devcluster_node, devcluster_namespace), (other, "default")):
            apply(cluster, namespace, pod("same-name"))
        for cluster, namespace in ((devcluster_node, devcluster_namespace), (other, "default")):
            wait = ("wait", "--for=condition=Ready", "pod/same-name", "--timeout=30s")
            cluster.kubectl(*wait, "-n", namespace)
        namespaces = other.kubectl("get", "namespaces", "-o", "name").stdout
        assert devcluster_namespace not in namespaces
        assert cluster_processes(other).isdisjoint(cluster_processes(devcluster_node))
        assert janitor.running_clusters().count(other.id) == 1

    ready = ("get", "pod", "same-name", "-n", devcluster_namespace, "-o", "json")
    status = json.loads(devcluster_node.kubectl(*ready).stdout)["status"]
    assert {"Ready": "True"}.items() <= {
        c["type"]: c["status"] for c in status["conditions"]
    }.items()


def test_an_id_that_runs_already_is_refused(devcluster_api: Cluster) -> None:
    with pytest.raises(DevclusterError, match="runs already"):
        Cluster.start(cluster_id=devcluster_api.id, profile="api")

    assert devcluster_api.kubectl("get", "namespaces").returncode == 0


@pytest.mark.long
def test_a_detached_cluster_lives_until_down(devcluster_api_possible: None) -> None:
    cluster_id = random_id()
    command = [sys.executable, "-m", "devcluster"]
    environment = os.environ | {"PYTHONPATH": str(TOOLS)}
    up = [*command, "up", "--id", cluster_id, "--profile", "api", "--detach"]
    said = written_by(up, env=environment)

    cluster = Cluster.attach(cluster_id)
    assert cluster.kubectl("get", "namespaces").returncode == 0
    assert str(cluster.kubeconfig) in said

    down = [*command, "down", "--id", cluster_id]
    written_by(down, env=environment)
    assert not list(clusters_folder().glob(f"*{cluster_id}*"))
    with pytest.raises(NotRunningError):
        Cluster.attach(cluster_id)


@pytest.mark.long
def test_ctrl_c_ends_a_cluster_in_the_foreground(
    devcluster_api_possible: None, starter: Starter
) -> None:
    cluster_id = random_id()
    up = ("-m", "devcluster", "up", "--id", cluster_id, "--profile", "api")
    process = starter(*up, until=b"Ctrl-C")

    process.send_signal(signal.SIGINT)

    assert process.wait(timeout=15) == 0
    assert not run_folder(cluster_id).exists()


def test_a_start_that_cannot_succeed_says_why_and_leaves_nothing(
    devcluster_api_possible: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster_id = random_id()
    # The keeper finds the `ip` that sets up the network by PATH; this one refuses.
    folder = clusters_folder().parent / f"broken-{cluster_id}"
    folder.mkdir()
    (folder / "ip").write_text("#!/bin/sh\necho this ip is broken >&2\nexit 1\n")
    (folder / "ip").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    try:
        with pytest.raises(DevclusterError, match="this ip is broken"):
            Cluster.start(cluster_id=cluster_id, profile="api")
    finally:
        (folder / "ip").unlink()
        folder.rmdir()

    assert not list(clusters_folder().glob(f"*{cluster_id}*"))
    assert not machine_traces(cluster_id, Path("/bin/true")).groups
