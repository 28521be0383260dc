"""Requests of rollout clients reach workers of the fleet, and no other host, whatever has its names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import SERVICES, service
from tests.unit.fleet_api.conftest import Api
from yarl import URL

from fleet_api import destinations
from fleet_api.fleets import Fleets
from fleet_operator.places import Places
from free_ports import free_port
from rlfleet_resources import names

CHAT = "/v1/chat/completions"
SECRET = {"X-Upstream-Authorization": "Bearer a-key-of-the-workers"}
SELECTOR = names.endpoint_selector("policy")


class Listening:
    """A server that counts its requests."""

    def __init__(self, host: str, port: int) -> None:
        self.requests = 0
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app, host=host, port=port)

    async def _answer(self, _: web.Request) -> web.Response:
        self.requests += 1
        return web.json_response({"from": self.server.host})


@pytest.fixture
async def workers() -> AsyncIterator[Listening]:
    async with (made := Listening("127.0.0.1", free_port())).server:  # free at 127.0.0.2, too
        yield made


@pytest.fixture
async def elsewhere(workers: Listening) -> AsyncIterator[Listening]:
    """Another tenant's server, on the same port."""
    async with (made := Listening("127.0.0.2", workers.server.port)).server:
        yield made


@pytest.fixture
def upstream(workers: Listening) -> str:
    return str(workers.server.make_url(""))


def replace(api: Api, name: str = "policy", **spec: Any) -> None:
    """Another user of the namespace changes a Service; None removes a field."""
    changed = api.cluster.services[name]["spec"]
    for field, value in spec.items():
        if value is None:
            changed.pop(field, None)
        else:
            changed[field] = value


async def refused(api: Api) -> str:
    status, problem = await api.send("POST", CHAT, json={}, headers=SECRET)
    assert status == 503
    return str(problem["reason"])


async def test_a_request_reaches_the_cluster_address_of_the_fleets_service(api, workers):
    assert await api.send("POST", CHAT, json={}) == (200, {"from": "127.0.0.1"})
    assert workers.requests == 1


async def test_workers_that_serve_https_get_no_request_in_clear(api, workers):
    """They closed the connection, and the RL API asked its caller to send the request again."""
    api.cluster.fleet["spec"]["engine"] = {"args": ["--ssl-certfile=/tls/tls.crt"]}
    port = workers.server.port

    status, problem = await api.send("POST", CHAT, json={})

    assert (status, problem["reason"]) == (409, "HTTPSOnly")
    assert f"https://policy.rl.svc:{port}" in problem["detail"]
    assert workers.requests == 0


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param(
            {
                "type": "ExternalName",
                "externalName": "127.0.0.2",
                "clusterIP": None,
                "selector": None,
            },
            id="a name of any host",
        ),
        pytest.param({"type": "ExternalName", "externalName": "127.0.0.2"}, id="both"),
        pytest.param({"clusterIP": "None"}, id="headless"),
        pytest.param({"clusterIP": ""}, id="no address yet"),
        pytest.param({"selector": None}, id="endpoints by hand"),
        pytest.param({"selector": {"app": "another"}}, id="other pods"),
        pytest.param({"ports": [{"port": 1, "targetPort": "http"}]}, id="another port"),
    ],
)
async def test_a_service_that_leads_elsewhere_gets_no_request(api, workers, elsewhere, spec):
    replace(api, **spec)

    assert await refused(api) == "NoService"
    assert (workers.requests, elsewhere.requests) == (0, 0)


async def test_a_service_whose_port_leads_to_another_port_of_the_pods_gets_no_request(api, workers):
    replace(api, ports=[{"port": workers.server.port, "targetPort": 22}])

    assert await refused(api) == "NoService"
    assert workers.requests == 0


@pytest.mark.parametrize("owner", ["", "uid-of-another-fleet"])
async def test_a_service_of_another_owner_gets_no_request(api, workers, elsewhere, owner):
    port = workers.server.port or 0
    api.cluster.services["policy"] = service("policy", "127.0.0.2", port, SELECTOR, owner)

    assert await refused(api) == "NameTaken"
    assert elsewhere.requests == 0


async def test_a_service_that_does_not_exist_is_503(api):
    del api.cluster.services["policy"]

    assert await refused(api) == "NoService"


async def test_a_fleet_with_0_replicas_gets_no_request(api, workers):
    api.cluster.fleet["spec"]["replicas"] = 0

    assert await refused(api) == "NoWorkers"
    assert workers.requests == 0


async def test_a_service_with_more_labels_in_its_selector_or_of_a_load_balancer_is_the_fleets(
    api, workers
):
    replace(api, type="LoadBalancer", selector=SELECTOR | {"zone": "a"})

    assert (await api.send("POST", CHAT, json={}))[0] == 200
    assert workers.requests == 1


# --- routers --------------------------------------------------------------------------------------


async def test_a_fleet_with_a_router_uses_only_a_checked_service_of_its_router(
    api, workers, elsewhere
):
    api.cluster.lead(str(workers.server.make_url("")), router=str(elsewhere.server.make_url("")))
    assert await api.send("POST", CHAT, json={}) == (200, {"from": "127.0.0.2"})


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"selector": SELECTOR}, id="workers, as the fleet's own"),
        pytest.param({"type": "ExternalName", "externalName": "127.0.0.2"}, id="any host"),
    ],
)
async def test_a_service_under_the_name_of_the_router_that_leads_elsewhere_gets_no_request(
    api, workers, elsewhere, spec
):
    api.cluster.lead(str(workers.server.make_url("")), router=str(elsewhere.server.make_url("")))
    replace(api, "policy-router", **spec)

    assert await refused(api) == "NoService"
    assert (workers.requests, elsewhere.requests) == (0, 0)


# --- changes --------------------------------------------------------------------------------------


async def test_a_service_that_another_owner_replaces_gets_no_request_after_some_seconds(
    api, elsewhere, monkeypatch
):
    monkeypatch.setattr(destinations, "SERVICE_SECONDS", 0.0)
    assert (await api.send("POST", CHAT, json={}))[0] == 200
    replace(api, type="ExternalName", externalName="127.0.0.2")

    # A connection to the workers is still open.
    assert await refused(api) == "NoService"
    assert elsewhere.requests == 0


async def test_a_service_that_does_not_answer_is_read_again_by_the_next_request(
    api, workers, elsewhere
):
    replace(api, clusterIP="127.0.0.9")
    assert await refused(api) == "NoReply"
    replace(api, clusterIP="127.0.0.2")

    assert await api.send("POST", CHAT, json={}) == (200, {"from": "127.0.0.2"})


async def test_requests_at_the_same_time_read_a_service_once(api):
    sent = [api.send("POST", CHAT, json={}) for _ in range(20)]

    assert {status for status, _ in await asyncio.gather(*sent)} == {200}
    assert api.cluster.count(f"{SERVICES}policy") == 1


async def test_a_connection_to_a_name_that_was_not_checked_is_refused(api):
    made = destinations.Destinations(api.cluster, Places(8), lambda: 0.0)

    with pytest.raises(OSError, match="localhost"):
        await made.resolve("localhost", 8000)


async def test_an_ipv6_address_of_a_service_is_used_as_one(api):
    replace(api, clusterIP="fd00::1")
    made = destinations.Destinations(api.cluster, Places(8), lambda: 0.0)
    fleet = await Fleets(api.cluster, Places(8)).fleet("rl", "policy")
    url = URL(await made.of(fleet))
    (found,) = await made.resolve(str(url.host), url.port or 0)

    assert (found["host"], found["family"]) == ("fd00::1", socket.AF_INET6)
