"""The operator's requests to the API server match the chart's rules, with none refused and none unused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml
from tests.cluster.support.admin import Admin, ApiError
from tests.cluster.support.fixtures import install
from tests.cluster.support.operator_process import OperatorProcess
from tests.cluster.support.pool_crd import POOL, installed_pools, pool_of
from tests.cluster.support.shared_operator import SharedOperator
from tests.cluster.support.workspace import FLEET, GROUP, Release, Workspace

from devcluster import Cluster
from fleet_operator.runtime import permissions
from fleet_operator.runtime.main import EXIT_CANNOT_START

NEEDED = {(g, resource, verb) for g, resource, verbs in permissions.NEEDED for verb in verbs}
LEASE = {
    (permissions.LEASE_GROUP, "leases", verb)
    for verb in (*permissions.LEASE_VERBS, *permissions.HEARTBEAT_VERBS)
}
"""Those on the two Leases of the operator."""
REVIEW = ("authorization.k8s.io", "selfsubjectaccessreviews", "create")
"""The rights of every authenticated user."""


async def _whole_life(workspace: Workspace) -> None:
    """Everything that a fleet can make an operator do to the API."""
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    await workspace.publish("2")
    await workspace.applied("2", replicas=2)
    await workspace.kubectl("scale", f"ifl/{FLEET}", "--replicas=1")
    await workspace.applied("2", replicas=1)
    # A pod that has lost its owner is adopted again.
    pod = f"/api/v1/namespaces/{workspace.namespace}/pods/{FLEET}-0"
    await workspace.admin.merge(pod, {"metadata": {"ownerReferences": None}})

    async def adopted() -> bool:
        return "ownerReferences" in (await workspace.objects("pods"))[f"{FLEET}-0"]["metadata"]

    await workspace.until(adopted, "the pod has an owner again")
    # With the second other template no pod is left of the first one, whose record goes.
    for name in ("first", "second"):
        await workspace.change_fleet(podOverlay={"metadata": {"annotations": {"example/of": name}}})
        await workspace.until(
            partial(_is_renewed, workspace), f"all pods are of the {name} template"
        )
    await workspace.change_fleet(router={"image": "router:1"})
    await workspace.until(partial(_has_router, workspace), "the fleet has a router")
    await workspace.change_fleet(router=None)

    async def gone() -> bool:
        return not await _has_router(workspace)

    await workspace.until(gone, "the router goes with its field")
    async with installed_pools(workspace):
        await workspace.change_fleet(serving={"inferencePool": POOL})
        await workspace.until(partial(pool_of, workspace), "the fleet has a pool")
        await workspace.change_fleet(serving={"inferencePool": None})

        async def no_pool() -> bool:
            return await pool_of(workspace) is None

        await workspace.until(no_pool, "the pool goes with its field")


async def _has_router(workspace: Workspace) -> bool:
    found = {
        **await workspace.objects("deployments", root="/apis/apps/v1"),
        **await workspace.objects("services"),
    }
    return f"{FLEET}-router" in found


async def _is_renewed(workspace: Workspace) -> bool:
    found = await workspace.fleet()
    status = found["status"]
    of_today = status["observedGeneration"] == found["metadata"]["generation"]
    return of_today and status["updatedReplicas"] == status["readyReplicas"] == 1


async def test_every_right_is_used_and_no_other_is_requested(workspace: Workspace) -> None:
    operator = await workspace.start_operator()
    await _whole_life(workspace)
    assert await operator.stop() == 0

    refused = [r for r in operator.proxy.requests if r.status in {401, 403}]
    used = operator.proxy.rights()
    assert refused == []
    assert used - NEEDED - LEASE - {REVIEW} == set()
    assert (NEEDED | LEASE) - used == set()


async def test_an_apply_of_what_is_not_there_wants_the_right_to_create(
    workspace: Workspace,
) -> None:
    """Why the roles grant `create` for kinds that are only ever applied."""
    token = await _account(workspace, "applier", [({"": ["configmaps"]}, ["get", "patch"])])
    config_map = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "c"},
        "data": {"a": "1"},
    }
    apply = ("apply", "--server-side", "--validate=false", f"--token={token}", "-f", "-")

    async def applied() -> str:
        words = ("-n", workspace.namespace, *apply)
        done = await asyncio.to_thread(
            workspace.cluster.kubectl, *words, stdin=json.dumps(config_map), check=False
        )
        return done.stderr

    assert 'configmaps "c" is forbidden' in await applied()  # Kubernetes 1.30 names no verb
    await workspace.admin.create(f"/api/v1/namespaces/{workspace.namespace}/configmaps", config_map)
    assert "forbidden" not in await applied()


async def test_missing_rights_are_named_and_the_operator_is_never_ready(
    workspace: Workspace,
) -> None:
    lacking = {("", "pods", "watch"), ("", "secrets", "create")}
    rules = [({g: [r]}, [v]) for g, r, v in sorted((NEEDED | LEASE) - lacking)]
    token = await _account(workspace, "poor", rules)
    place = workspace.namespace
    here = (f"--namespaces={place}", f"--lease-namespace={place}")
    operator = await workspace.start_operator(*here, token=token, leading=False)

    seen = await _readiness_until_the_end(operator)

    assert await operator.ended() == EXIT_CANNOT_START
    assert 200 not in seen
    assert _last_error(operator) == (
        "cannot start: the operator's service account has no permission to: "
        f"watch pods in {place}, create secrets in {place}. Grant them as the chart's role does (docs/reference/rbac.md)"
    )


async def test_missing_crds_are_named_and_the_operator_is_never_ready(workspace: Workspace) -> None:
    # As if the group did not exist: the server itself says what it says then.
    operator = await workspace.start_operator(
        renamed={"/apis/rlfleet.dev/": "/apis/absent.rlfleet.dev/"}, leading=False
    )

    seen = await _readiness_until_the_end(operator)

    assert await operator.ended() == EXIT_CANNOT_START
    assert 200 not in seen
    message = _last_error(operator)
    assert "the cluster does not know rlfleet.dev/v1alpha1" in message
    assert "install the CRDs (helm value crds.enabled, or kubectl apply -f crds/)" in message


@pytest.fixture
def narrow(devcluster_api: Cluster, release: Release) -> Iterator[Release]:
    """The chart a second time, allowed into two namespaces only."""
    for name in ("narrow-a", "narrow-b"):
        devcluster_api.kubectl("create", "namespace", name)
    installed = install(
        devcluster_api,
        "narrow",
        "narrow-system",
        'watchNamespaces=["narrow-a","narrow-b"]',
        "crds.enabled=false",
    )
    yield installed
    devcluster_api.helm("uninstall", "narrow", "-n", "narrow-system")
    names = ("narrow-a", "narrow-b", "narrow-system")
    devcluster_api.kubectl("delete", "namespace", *names, "--wait=false")


async def test_an_operator_of_some_namespaces_sees_nothing_else(
    operator_of_run: SharedOperator, narrow: Release, tmp_path: Path
) -> None:
    await operator_of_run.stop()
    async with Workspace(
        operator_of_run.cluster, narrow, tmp_path, namespace="narrow-a"
    ) as workspace:
        operator = await workspace.start_operator()
        await workspace.make_namespace("rl-outside")
        await workspace.make_fleet(replicas=1, namespace="rl-outside")
        await workspace.make_fleet(replicas=1)
        await workspace.applied("1", replicas=1)
        await workspace.publish("2")
        await workspace.applied("2", replicas=1)

        outside = await workspace.admin.get(
            f"{GROUP}/namespaces/rl-outside/inferencefleets/{FLEET}"
        )
        assert outside is not None
        assert outside["status"] == {"observedGeneration": -1}  # as the CRD fills it in
        asked = {r.namespace for r in operator.proxy.requests if r.right and r.right != REVIEW}
        assert asked == {"narrow-a", "narrow-b", "narrow-system"}
        assert [r for r in operator.proxy.requests if r.status == 403] == []
        assert await operator.stop() == 0
        with pytest.raises(ApiError, match="cannot list resource"):
            await _as(workspace, narrow.token, "/api/v1/namespaces/rl-outside/pods")
        assert await _as(workspace, narrow.token, "/api/v1/namespaces/narrow-b/pods")


async def _as(workspace: Workspace, token: str, path: str):
    async with Admin(workspace.credentials, token=token) as admin:
        return await admin.get(path)


async def _account(workspace: Workspace, name: str, rules) -> str:
    """An account of the workspace's namespace with a role there. Returns: its token."""
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "Role",
            "metadata": {"name": name},
            "rules": [
                {"apiGroups": [group], "resources": resources, "verbs": verbs}
                | ({"resourceNames": names[0]} if names else {})
                for places, verbs, *names in rules
                for group, resources in places.items()
            ],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [
                {"kind": "ServiceAccount", "name": name, "namespace": workspace.namespace}
            ],
        },
    ]
    apply = ("-n", workspace.namespace, "apply", "-f", "-")
    text = yaml.safe_dump_all(objects)
    await asyncio.to_thread(workspace.cluster.kubectl, *apply, stdin=text)
    return (await workspace.kubectl("create", "token", name)).strip()


async def _readiness_until_the_end(operator: OperatorProcess) -> set[int]:
    """Everything that /readyz answered while the process lived; 0 for no answer."""
    seen = set()
    end = asyncio.create_task(operator.ended())
    while not end.done():
        seen.add((await operator.page("/readyz"))[0])
        await asyncio.wait([end], timeout=0.02)
    return seen


def _last_error(operator: OperatorProcess) -> str:
    (line,) = [found for found in operator.lines() if found["level"] == "ERROR"]
    return str(line["message"])
