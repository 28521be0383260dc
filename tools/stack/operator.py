"""The chart on a cluster, by the real helm."""

from __future__ import annotations

from pathlib import Path

import envs
from devcluster import Cluster
from stack.images import OPERATOR_IMAGE, WORKER_IMAGE

CHART = envs.REPOSITORY / "charts" / "rlfleet"
RELEASE = "rlfleet"
NAMESPACE = "rlfleet-system"


def install(cluster: Cluster, *settings: str, replicas: int = 2, chart: Path = CHART) -> str:
    """Install or upgrade the chart with the development images, and wait until it is up.

    Args:
        cluster: A cluster that has the images.
        settings: Further `key=value` pairs for helm's --set; the last one of a key holds.
        replicas: The replicas of the operator.
        chart: Folder or packed chart.

    Returns: helm's words.
    """
    repository, _, tag = OPERATOR_IMAGE.partition(":")
    values = [
        f"replicaCount={replicas}",
        f"image.repository={repository}",
        f"image.tag={tag}",
        f"worker.image={WORKER_IMAGE}",
        *settings,
    ]
    chosen = [argument for value in values for argument in ("--set", value)]
    place = ["--namespace", NAMESPACE, "--create-namespace"]
    waiting = ["--wait", "--timeout", "300s"]
    return cluster.helm(
        "upgrade", "--install", RELEASE, str(chart), *place, *waiting, *chosen
    ).stdout


def uninstall(cluster: Cluster) -> str:
    """Uninstall the chart. The CRDs stay, unless it was installed without `crds.keep`."""
    return cluster.helm("uninstall", RELEASE, "--namespace", NAMESPACE, "--wait").stdout
