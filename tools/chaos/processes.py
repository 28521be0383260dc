"""Signals to the processes of a pod, from its node: from inside, nothing reaches process 1."""

from __future__ import annotations

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

# Runs on the node as root. Containers have their pod's name as host name in the environment of
# their processes; the engine has renamed itself, but not its environment.
_SIGNAL = """
import os, signal, sys
from pathlib import Path
host, word, name = sys.argv[1:]
for entry in Path("/proc").glob("[0-9]*"):
    try:
        line, environment = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
    except OSError:
        continue
    if word.encode() not in line or int(entry.name) == os.getpid():
        continue
    if f"HOSTNAME={host}".encode() in environment.split(bytes(1)):
        os.kill(int(entry.name), getattr(signal, name))
        print(entry.name)
"""


class NoSuchProcessError(Exception):
    """There is no such process to signal."""


def signal_worker(fleet: Fleet, pod: str, process: Process, name: str) -> None:
    """Signal a worker's process. `name`: as in `signal`, say SIGSTOP."""
    node = _node_of(fleet.pods()[pod]["spec"]["nodeName"])
    _signal(fleet.cluster, node, pod, process, name)


def signal_leader(cluster: Cluster, name: str) -> str:
    """Signal the operator that holds the Lease. Returns: its pod."""
    look = "jsonpath={.spec.holderIdentity}"
    chosen = ("-n", SYSTEM, "get", "lease", RELEASE, "-o", look)
    pod = cluster.kubectl(*chosen).stdout.partition("_")[0]
    look = "jsonpath={.spec.nodeName}"
    node = cluster.kubectl("-n", SYSTEM, "get", "pod", pod, "-o", look).stdout
    _signal(cluster, _node_of(node), pod, "operator", name)
    return pod


def _signal(cluster: Cluster, node: int, pod: str, process: Process, name: str) -> None:
    done = cluster.exec(["python3", "-c", _SIGNAL, pod, _WORDS[process], name], node=node)
    if not done.stdout.strip():
        raise NoSuchProcessError(f"{pod} has no {process} to signal")


def _node_of(name: str) -> int:
    return int(name.rpartition("-")[2])
