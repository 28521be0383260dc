"""Possible remains of a cluster on the machine, to compare before and after."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from devcluster import Cluster, cgroups
from devcluster.paths import clusters_folder
from devcluster.processes import run

_PLACES = (
    *("/etc/cni", "/etc/containerd", "/opt/cni", "/opt/containerd"),
    *("/run/cni", "/run/containerd", "/run/devcluster", "/run/netns", "/run/runc", "/run/nri"),
    *("/usr/libexec/kubernetes", "/var/lib/cni", "/var/lib/containerd", "/var/lib/kubelet"),
    *("/var/log/containers", "/var/log/pods"),
)
_SETTINGS = (
    *("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys"),
    *("net/ipv4/ip_forward", "net/ipv4/conf/all/rp_filter", "net/ipv4/ip_local_reserved_ports"),
    *("net/bridge/bridge-nf-call-iptables", "net/netfilter/nf_conntrack_max"),
)

Process = tuple[int, str]
"""A process's number and start: numbers are used again."""


@dataclass(frozen=True)
class Traces:
    """The machine's state as far as a cluster could touch it."""

    mounts: frozenset[str]
    links: frozenset[str]
    groups: frozenset[str]
    rules: str
    places: frozenset[str]


def machine_traces(cluster_id: str, nft: Path) -> Traces:
    """Look at the machine. Things of other clusters and of other users are left out."""
    mountinfo = Path("/proc/self/mountinfo").read_text().splitlines()
    # Groups of other clusters come and go while this looks: os.walk does not mind.
    folders = (folder for folder, _, _ in os.walk("/sys/fs/cgroup"))
    groups = {folder for folder in folders if f"/rlfleet-{cluster_id}-" in folder}
    places = {place for place in _PLACES if Path(place).exists()}
    places |= {str(found) for found in clusters_folder().glob(f"*{cluster_id}*")}
    return Traces(
        mounts=frozenset(line.split(" ", 2)[2] for line in mountinfo),
        links=frozenset(link.name for link in Path("/sys/class/net").iterdir()),
        groups=frozenset(groups),
        rules=run([nft, "list", "ruleset"]).stdout,
        places=frozenset(places),
    )


def cluster_processes(cluster: Cluster) -> frozenset[Process]:
    """Everything the cluster runs now: all in its control groups, and its keeper."""
    groups = (cluster.folder / "groups").read_text().splitlines()
    numbers = cgroups.processes(tuple(Path(group) for group in groups))
    numbers.add(cluster.status()["keeper"])
    return frozenset((number, started) for number in numbers if (started := _start_of(number)))


def still_running(processes: frozenset[Process]) -> frozenset[Process]:
    """Those of the processes that have not ended, nor wait as zombies to be reaped."""
    return frozenset((number, start) for number, start in processes if _start_of(number) == start)


def kernel_settings() -> dict[str, str]:
    """The machine's kernel settings that components of Kubernetes like to change."""
    paths = {name: Path("/proc/sys", name) for name in _SETTINGS}
    return {name: path.read_text() for name, path in paths.items() if path.exists()}


SETTINGS_AT_START = kernel_settings()
"""Read before any test: later, a cluster that many tests share may have changed them already."""


def _start_of(number: int) -> str:
    """When a process started, in clock ticks; "" when it has ended."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return "" if fields[0] in {"Z", "X"} else fields[19]
