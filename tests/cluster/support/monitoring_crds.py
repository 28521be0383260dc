"""The published CRDs of the Prometheus operator that the chart makes objects of."""

from __future__ import annotations

from pathlib import Path

from devcluster import Cluster

FOLDER = Path(__file__).parents[1] / "recorded/monitoring"


def install(cluster: Cluster) -> None:
    """Install them and wait until the API server knows their kinds."""
    cluster.kubectl("apply", "-f", str(FOLDER))
    cluster.kubectl("wait", "--for=condition=Established", "-f", str(FOLDER), "--timeout=60s")
