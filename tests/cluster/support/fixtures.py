"""The chart on the shared control plane, an operator that tests share, and a workspace for each test."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.shared_operator import SharedOperator
from tests.cluster.support.workspace import Release, Workspace

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


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def operator_of_run(
    devcluster_api: Cluster, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SharedOperator]:
    """The shared operator, whether it runs or not. Tests ask for `shared_operator` or `workspace`."""
    async with SharedOperator(devcluster_api, release, tmp_path_factory.mktemp("operator")) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def workspace(
    operator_of_run: SharedOperator, request: pytest.FixtureRequest, tmp_path: Path
) -> AsyncIterator[Workspace]:
    """A namespace and a node for one test. No operator runs, except `shared_operator` if the test
    asks for it.
    """
    if "shared_operator" not in request.fixturenames:
        await operator_of_run.stop()
    async with Workspace(operator_of_run.cluster, operator_of_run.release, tmp_path) as made:
        yield made


@pytest_asyncio.fixture(loop_scope="session")
async def shared_operator(operator_of_run: SharedOperator, workspace: Workspace) -> OperatorProcess:
    """An operator that leads, with the chart's arguments. It has served earlier tests."""
    operator = await operator_of_run.leading()
    workspace.watch_log(operator)
    return operator
