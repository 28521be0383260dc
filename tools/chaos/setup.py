"""A fleet of real workers to break: checkpoints on a volume, an InferenceFleet, a WeightVersion."""

from __future__ import annotations

import itertools
from typing import Any

import stack
from chaos.fleet import NAMESPACE, Fleet
from chaos.store import mount_store
from devcluster import Cluster
from stack.offline import write_checkpoints

LOST_NODE_SECONDS = 20
RECYCLE_WINDOW_SECONDS = 60


def start_fleet(cluster: Cluster, *, replicas: int, steps: int) -> Fleet:
    """Make the fleet; it serves step 1 when it is ready.

    Args:
        cluster: With the chart installed.
        replicas: Workers.
        steps: How many checkpoints are there to be published.
    """
    folder = cluster.folder / "weights"
    folder.mkdir()
    named = {"base": {"seed": 0}} | {f"step_{n}": {"seed": n} for n in range(1, steps + 1)}
    write_checkpoints({folder / name: options for name, options in named.items()})
    folder.chmod(0o755)
    view = mount_store(cluster, folder)
    fleet = Fleet(cluster, folder, itertools.count(2))
    cluster.kubectl("create", "namespace", NAMESPACE)
    fleet.apply(
        *stack.weights_volume(view, NAMESPACE),
        _soon_given_up(stack.fleet_manifest(fleet.name, replicas=replicas)),
        stack.weights_manifest(fleet.name, fleet=fleet.name, version="1"),
    )
    return fleet


def _soon_given_up(manifest: dict[str, Any]) -> dict[str, Any]:
    """Notices a node's loss within seconds. Production sets longer times, but tests wait for them. And
    recreates workers as often as they break, since the faults are deliberate.
    """
    manifest["spec"]["recycle"] = {"windowSeconds": RECYCLE_WINDOW_SECONDS}
    tolerations = [
        {
            "key": f"node.kubernetes.io/{state}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": LOST_NODE_SECONDS,
        }
        for state in ("not-ready", "unreachable")
    ]
    manifest["spec"]["podOverlay"] = {"spec": {"tolerations": tolerations}}
    return manifest
