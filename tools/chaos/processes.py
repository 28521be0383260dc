"""Signals to the processes of a pod, from its node: from inside, nothing reaches process 1."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from chaos.fleet import Fleet
from devcluster import Cluster
from stack.operator import NAMESPACE as SYSTEM
from stack.operator import RELEASE

Process = Literal["worker", "engine", "operator"]

_WORDS: dict[Process, str] = {
    "worker": "fleet_worker",
    "engine": "EngineCore",
    "operator": "fleet_operator",
}

# Runs on the node as root. A pod's host name is its own; the engine has written over its command
# line and its environment, but not over that.
_SIGNAL = """
import os, signal, sys
from pathlib import Path
host, word, name = sys.argv[1:]
for entry in Path("/proc").glob("[0-9]*"):
    try:
        line, name_of_host = (entry / "cmdline").read_bytes(), (entry / "root/etc/hostname").read_text()
    except OSError:
        continue
    if word.encode() in line and name_of_host.strip() == host:
        os.kill(int(entry.name), getattr(signal, name))
        print(entry.name)
"""


class NoSuchProcessError(Exception):
    """There is no such process to signal."""


def signal_worker(
    fleet: Fleet, pod: str, process: Process, name: str, *, node: int | None = None
) -> None:
    """Signal a worker's process.

    Args:
        fleet: The worker's.
        pod: The worker.
        process: Which of its processes.
        name: As in `signal`, say SIGSTOP.
        node: Where it is, if known: then no API server is needed.

    Errors: NoSuchProcessError.
    """
    _signal(fleet.cluster, node or node_of(fleet, pod), pod, process, name)


def node_of(fleet: Fleet, pod: str) -> int:
    """Number of the node that a worker runs on."""
    return _node_of(fleet.pods()[pod]["spec"]["nodeName"])


def signal_leader(cluster: Cluster, name: str) -> str:
    """Signal the operator that holds the Lease. Returns: its pod."""
    pod = leader_pod(cluster)
    signal_operator(cluster, pod, name)
    return pod


def signal_operator(cluster: Cluster, pod: str, name: str) -> None:
    """Signal the process of an operator's pod."""
    look = "jsonpath={.spec.nodeName}"
    node = cluster.kubectl("-n", SYSTEM, "get", "pod", pod, "-o", look).stdout
    _signal(cluster, _node_of(node), pod, "operator", name)


def leader_pod(cluster: Cluster) -> str:
    """The operator's pod that holds the Lease."""
    look = "jsonpath={.spec.holderIdentity}"
    chosen = ("-n", SYSTEM, "get", "lease", RELEASE, "-o", look)
    return str(cluster.kubectl(*chosen).stdout.partition("_")[0])


@contextmanager
def without_operator(cluster: Cluster, replicas: int = 2) -> Iterator[None]:
    """No operator runs inside; `replicas` of it are started again at the end."""
    deployment = ("-n", SYSTEM, "scale", f"deployment/{RELEASE}")
    pods = ("-n", SYSTEM, "wait", "pod", "-l", "app.kubernetes.io/name=rlfleet-operator")
    cluster.kubectl(*deployment, "--replicas=0")
    try:
        cluster.kubectl(*pods, "--for=delete", "--timeout=120s")
        yield
    finally:
        cluster.kubectl(*deployment, f"--replicas={replicas}")


def operator_addresses(cluster: Cluster) -> dict[str, str]:
    """Pods of the operator → their addresses."""
    chosen = ("-n", SYSTEM, "get", "pods", "-l", f"app.kubernetes.io/instance={RELEASE}")
    found = json.loads(cluster.kubectl(*chosen, "-o", "json").stdout)["items"]
    return {
        pod["metadata"]["name"]: pod["status"]["podIP"]
        for pod in found
        if pod["status"].get("podIP")
    }


def _signal(cluster: Cluster, node: int, pod: str, process: Process, name: str) -> None:
    done = cluster.exec(["python3", "-c", _SIGNAL, pod, _WORDS[process], name], node=node)
    if not done.stdout.strip():
        raise NoSuchProcessError(f"{pod} has no {process} to signal")


def _node_of(name: str) -> int:
    return int(name.rpartition("-")[2])
