"""The specification of a cluster, which its processes share, and the addresses that follow from it.

All clusters use the same addresses: each lives in network namespaces of its own, which have no
link to the machine's network.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from devcluster.profiles import Profile

POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
API_SERVICE_ADDRESS = "10.96.0.1"
DNS_ADDRESS = "10.240.0.1"
"""CoreDNS is a process of the first node, reached at the node's address."""
BRIDGE = "cni0"

INSIDE = Path("/run/devcluster")
"""A node's folder as its own processes see it; short, since paths of sockets are limited to 107."""
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
PAUSE_IMAGE = "docker.io/rlfleet/pause:dev"


def node_name(node: int) -> str:
    """The name under which a node registers; nodes count from 1."""
    return f"node-{node}"


def node_address(node: int) -> str:
    """The node's address, held by its loopback interface."""
    return f"10.240.0.{node}"


def bridge_address(node: int) -> str:
    """The gateway of the node's pods."""
    return f"10.244.{node}.1"


def pod_range(node: int) -> str:
    """The addresses of the node's pods."""
    return f"10.244.{node}.0/24"


@dataclass(frozen=True, slots=True)
class Spec:
    """Everything that the keeper and the nodes must know."""

    id: str
    run: Path
    """The cluster's folder."""
    profile: Profile
    nodes: int
    mounts: tuple[tuple[str, str], ...]
    """Machine folders in every container, read-only: (source, destination)."""
    programs: tuple[str, ...]
    """Folders with programs."""
    token: str
    """Random: tells this start from others of the same id in the names of control groups."""
    starter: int | None
    """The process whose death ends the cluster; None for a detached one."""

    def node_folder(self, node: int) -> Path:
        """A node's files, as the machine sees them."""
        return self.run / f"node-{node}"

    def group_name(self, node: int) -> str:
        """The name of a node's control group.

        Control groups are the one thing of a cluster that namespaces do not keep apart. The name
        is never used again, so that a cleanup of an earlier cluster of this id
        does not touch this one.
        """
        return f"rlfleet-{self.id}-{self.token}-{node}"

    def save(self) -> None:
        """Write the record into the cluster's folder."""
        text = json.dumps(asdict(self) | {"run": str(self.run)}, indent=2)
        (self.run / "spec.json").write_text(text)


def load_spec(run: Path) -> Spec:
    """Read what `save` wrote."""
    fields = json.loads((run / "spec.json").read_text())
    pairs = tuple((source, destination) for source, destination in fields["mounts"])
    programs = tuple(fields["programs"])
    return Spec(**(fields | {"run": run, "mounts": pairs, "programs": programs}))
