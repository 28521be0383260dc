"""The router of a fleet on a real API server: made, kept as the spec wants it, shown, and deleted."""

from __future__ import annotations

from tests.cluster.support.admin import Json
from tests.cluster.support.stage import FLEET, Stage

NAME = f"{FLEET}-router"
APPS = "/apis/apps/v1"


async def test_a_router_follows_its_field_and_the_status_follows_the_router(stage: Stage) -> None:
    await stage.start_operator()
    router = {"image": "router:1", "resources": {"requests": {"cpu": "1500m"}}}
    await stage.make_fleet(replicas=1, serving={"adminPort": stage.admin_port}, router=router)

    async def made() -> Json | None:
        return (await stage.objects("deployments", root=APPS)).get(NAME)

    deployment = await stage.until(made, "the fleet has a router")
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "router:1"
    assert (await stage.objects("services"))[NAME]["spec"]["ports"][0]["port"] == 8000
    path = f"{APPS}/namespaces/{stage.namespace}/deployments/{NAME}"

    await stage.admin.merge(path, {"spec": {"replicas": 5}})

    async def repaired() -> bool:
        found = await made()
        return found is not None and found["spec"]["replicas"] == 1

    await stage.until(repaired, "the operator undoes what another writer changed")

    async def shown() -> bool:
        found = (await stage.fleet()).get("status", {}).get("router", {})
        return bool(found.get("readyReplicas") == 1)

    await stage.until(shown, "the fleet's status has the ready replicas")
    available = await stage.condition("RouterAvailable", of="inferencefleets")
    assert available is not None
    assert (available["status"], available["reason"]) == ("True", "RouterReady")

    await stage.change_fleet(router=None)

    async def gone() -> bool:
        services = await stage.objects("services")
        return await made() is None and NAME not in services and FLEET in services

    await stage.until(gone, "the router goes with its field, and the fleet's Service stays")

    async def silent() -> bool:
        return "router" not in (await stage.fleet())["status"]

    await stage.until(silent, "the status has no router")
