"""A fleet that moves from one release of the operator to another, which may read less."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.support.fixtures import install
from tests.cluster.support.workspace import Workspace

LEASES = "/apis/coordination.k8s.io/v1/namespaces"


@pytest.mark.long
async def test_a_release_with_watched_namespaces_takes_over_from_one_that_is_gone(
    workspace: Workspace,
) -> None:
    first = await workspace.start_operator()
    await workspace.make_fleet(replicas=1, version="1")
    await workspace.applied("1", replicas=1)
    await first.stop()
    before = workspace.release
    await workspace.admin.delete(f"{LEASES}/{before.namespace}/leases/{before.name}")
    watched = f'watchNamespaces=["{workspace.namespace}"]'
    values = (watched, "crds.enabled=false", "rbac.aggregate=false")
    second = await asyncio.to_thread(install, workspace.cluster, "second", "second-system", *values)
    workspace.release = second
    try:
        operator = await workspace.start_operator()
        await workspace.publish("2")
        await workspace.applied("2", replicas=1, seconds=200)
        await operator.stop()
    finally:
        workspace.release = before
        await asyncio.to_thread(
            workspace.cluster.helm, "uninstall", "second", "-n", "second-system"
        )

    status = (await workspace.fleet())["status"]
    assert status["operator"] == f"{second.namespace}/{second.name}"
