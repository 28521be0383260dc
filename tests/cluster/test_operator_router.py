"""Router and InferencePool of a fleet on a real API server: made, kept, shown, and deleted."""

from __future__ import annotations

from functools import partial

from tests.cluster.support.admin import Json
from tests.cluster.support.pool_crd import POOL, installed_pools, pool_of
from tests.cluster.support.workspace import FLEET, Workspace

NAME = f"{FLEET}-router"
APPS = "/apis/apps/v1"


async def test_a_router_follows_its_field_and_the_status_follows_the_router(
    workspace: Workspace,
) -> None:
    await workspace.start_operator()
    router = {"image": "router:1", "resources": {"requests": {"cpu": "1.5", "memory": "1024Mi"}}}
    await workspace.make_fleet(
        replicas=1, serving={"adminPort": workspace.admin_port}, router=router
    )

    async def made() -> Json | None:
        return (await workspace.objects("deployments", root=APPS)).get(NAME)

    deployment = await workspace.until(made, "the fleet has a router")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "router:1"

    async def reachable() -> Json | None:
        return (await workspace.objects("services")).get(NAME)

    # The operator writes both at once, and the API server answers in either order.
    service = await workspace.until(reachable, "the router has a Service")
    assert service["spec"]["ports"][0]["port"] == 8000
    path = f"{APPS}/namespaces/{workspace.namespace}/deployments/{NAME}"

    await workspace.admin.merge(path, {"spec": {"replicas": 5}})

    async def repaired() -> bool:
        found = await made()
        return found is not None and found["spec"]["replicas"] == 1

    await workspace.until(repaired, "the operator undoes what another writer changed")

    async def shown() -> bool:
        found = (await workspace.fleet()).get("status", {}).get("router", {})
        return bool(found.get("readyReplicas") == 1)

    await workspace.until(shown, "the fleet's status has the ready replicas")
    available = await workspace.condition("RouterAvailable", of="inferencefleets")
    assert available is not None
    assert (available["status"], available["reason"]) == ("True", "RouterReady")

    async def is_ready() -> bool:
        ready = await workspace.condition("Ready", of="inferencefleets")
        return ready is not None and ready["status"] == "True"

    await workspace.until(is_ready, "the router is as written, in the notation of the API server")

    await workspace.change_fleet(router=None)

    async def gone() -> bool:
        services = await workspace.objects("services")
        return await made() is None and NAME not in services and FLEET in services

    await workspace.until(gone, "the router goes with its field, and the fleet's Service stays")

    async def silent() -> bool:
        return "router" not in (await workspace.fleet())["status"]

    await workspace.until(silent, "the status has no router")


async def test_a_pool_waits_for_its_crd_and_follows_its_field(workspace: Workspace) -> None:
    """The CRD is the published one. Nothing else of the fleet waits for it."""
    serving = {"port": 8000, "adminPort": workspace.admin_port, "inferencePool": POOL}
    await workspace.start_operator()
    await workspace.make_fleet(replicas=1, serving=serving)

    async def stalled() -> Json | None:
        return await workspace.condition("Stalled", of="inferencefleets")

    said = await workspace.until(stalled, "the missing CRD is reported")
    assert said["reason"] == "KindNotInstalled"
    assert "inferencepools of inference.networking.k8s.io/v1" in said["message"]

    async def serves() -> bool:
        return workspace.serving == ["1"]

    await workspace.until(serves, "the worker serves nevertheless")
    async with installed_pools(workspace):
        found = await workspace.until(partial(pool_of, workspace), "the pool follows the CRD")
        service = (await workspace.objects("services"))[FLEET]
        assert found["spec"]["selector"]["matchLabels"] == service["spec"]["selector"]
        assert found["spec"]["endpointPickerRef"]["kind"] == "Service", "their default"

        async def well() -> bool:
            return await stalled() is None

        await workspace.until(well, "the report ends")
        await workspace.change_fleet(serving={"inferencePool": None})

        async def gone() -> bool:
            return await pool_of(workspace) is None

        await workspace.until(gone, "the pool goes with its field")
