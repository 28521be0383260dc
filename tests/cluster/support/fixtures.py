"""The chart on the shared control plane, and a stage for each test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.cluster.support.stage import Release, Stage

from devcluster import Cluster

CHART = Path(__file__).parents[3] / "charts/rlfleet"
RELEASE = "rlfleet"
NAMESPACE = "rlfleet-system"


def install(cluster: Cluster, name: str, namespace: str, *values: str) -> Release:
    """Install the chart by the real helm, with no replica: operators are started by the tests.

    The CRDs may be there already, from tests that apply them without the chart.
    """
    chosen = [word for value in ("replicaCount=0", *values) for word in ("--set-json", value)]
    place = ("-n", namespace, "--create-namespace", "--take-ownership", "--wait")
    cluster.helm("upgrade", "--install", name, str(CHART), *place, *chosen)
    found = cluster.kubectl("get", "deployments", "-n", namespace, "-o", "json").stdout
    (deployment,) = json.loads(found)["items"]
    pod = deployment["spec"]["template"]["spec"]
    account = pod["serviceAccountName"]
    token = cluster.kubectl("create", "token", account, "-n", namespace, "--duration=2h").stdout
    (container,) = pod["containers"]
    return Release(
        name=deployment["metadata"]["name"],
        namespace=namespace,
        arguments=tuple(container["args"]),
        token=token.strip(),
    )


@pytest.fixture(scope="session")
def release(devcluster_api: Cluster) -> Release:
    """The chart with its default values."""
    installed = install(devcluster_api, RELEASE, NAMESPACE)
    devcluster_api.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=20s")
    return installed


@pytest.fixture
async def stage(devcluster_api: Cluster, release: Release, tmp_path: Path) -> AsyncIterator[Stage]:
    """A namespace and a node of one's own."""
    async with Stage(devcluster_api, release, tmp_path) as made:
        yield made
