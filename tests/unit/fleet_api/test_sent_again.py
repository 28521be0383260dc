"""Requests of rollout clients that a worker of the fleet answers only elsewhere, or with a key."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import READER
from tests.support.fake_objects import condition
from tests.support.prime_rl import PrimeRl
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import STATIC_KEY

from fleet_api.passed_headers import ROUTED_PATHS
from fleet_api.proxy import PAUSES_SECONDS
from free_ports import free_port

CHAT = "/v1/chat/completions"
KEY = "key-of-the-public-port"


class Workers:
    """Workers behind one address. `versions`: each reply has the next one, and the last one stays."""

    def __init__(self, *versions: int, host: str = "127.0.0.1", port: int | None = None) -> None:
        self.versions = list(versions)
        self.key = ""
        self.loses_headers_on_other_routes = False
        """As `vllm-router` does on routes that it does not know."""
        self.holds: asyncio.Event | None = None
        """Until then no completion is answered."""
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections: list[Any] = []
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app, host=host, port=port)

    @property
    def url(self) -> str:
        return str(self.server.make_url("")).rstrip("/")

    async def _answer(self, request: web.Request) -> web.Response:
        content = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        if self.loses_headers_on_other_routes and request.path not in ROUTED_PATHS:
            headers = {}
        self.requests.append((request.path_qs, headers, content))
        if request.transport not in self.connections:
            self.connections.append(request.transport)
        if self.holds is not None and request.path == "/v1/completions":
            await self.holds.wait()
        if self.key and headers.get("authorization") != f"Bearer {self.key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": "qwen", "max_model_len": 8}]})
        version = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        asked = json.loads(content or b"{}").get("weight_version_min", 0)
        if version < int(headers.get("x-weight-version-min", asked)):
            answer = {"x-weight-version": str(version), "Retry-After": "1"}
            return web.json_response({"error": "unmet"}, status=409, headers=answer)
        return web.json_response({"version": version})


@pytest.fixture
async def router() -> AsyncIterator[Workers]:
    """A sticky router: the session's worker has the old version."""
    made = Workers(42, port=free_port())  # free at the other address, too
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
async def behind(router: Workers) -> AsyncIterator[Workers]:
    """The fleet's Service, on the port of the router's."""
    made = Workers(42, 42, 43, host="127.0.0.2", port=router.server.port)
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
def upstream(behind: Workers) -> str:
    return behind.url


@pytest.fixture
def upstream_router(router: Workers) -> str:
    return router.url


# --- demands --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"x-weight-version-min": "43"}, {"prompt": "x"}),
        ({}, {"prompt": "x", "weight_version_min": 43}),
    ],
)
async def test_an_unmet_demand_goes_to_the_service_over_new_connections_until_a_worker_meets_it(
    api, router, behind, headers, body
):
    headers |= {"X-Session-ID": "s"}
    assert await api.send("POST", f"{CHAT}?a=1", json=body, headers=headers) == (
        200,
        {"version": 43},
    )

    assert (len(router.requests), len(behind.requests)) == (1, 3)
    assert len(behind.connections) == 3
    path, sent, content = behind.requests[-1]
    assert (path, sent["x-session-id"], json.loads(content)) == (f"{CHAT}?a=1", "s", body)
    assert READER not in str(sent)


async def test_a_demand_that_no_worker_meets_is_409_after_a_bounded_number_of_tries(
    api, router, behind
):
    async with api.http.post(
        f"/fleets/rl/policy{CHAT}",
        json={},
        headers={"Authorization": f"Bearer {READER}", "x-weight-version-min": "44"},
    ) as reply:
        assert (reply.status, reply.headers["Retry-After"]) == (409, "1")
        assert (await reply.json())["error"] == "unmet"

    assert (len(router.requests), len(behind.requests)) == (1, len(PAUSES_SECONDS))


async def test_a_service_that_does_not_answer_leaves_the_answer_of_the_router(api, behind):
    await behind.server.close()
    status, body = await api.send("POST", CHAT, json={"weight_version_min": 43})

    assert (status, body) == (409, {"error": "unmet"})


async def test_bodies_are_kept_within_a_bound_for_all_requests_together(api, behind):
    body = {"weight_version_min": 43, "prompt": "x" * 20_000_000}
    content = io.BytesIO(json.dumps(body).encode())
    assert (await api.send("POST", CHAT, data=content))[0] == 409
    assert behind.requests == []

    del body["prompt"]
    assert (await api.send("POST", CHAT, json=body))[0] == 200, "the room is free again"


async def test_a_request_without_a_demand_takes_no_room_while_its_reply_is_made(
    api, router, behind
):
    router.holds = asyncio.Event()
    large = {"prompt": "x" * 10_000_000}
    content = io.BytesIO(json.dumps(large).encode())
    slow = asyncio.ensure_future(api.send("POST", "/v1/completions", data=content))
    try:
        await soon(lambda: router.requests)
        content = io.BytesIO(json.dumps({"weight_version_min": 43} | large).encode())
        assert (await api.send("POST", CHAT, data=content))[0] == 200
    finally:
        router.holds.set()
        assert (await slow)[0] == 200


async def test_the_kept_bodies_of_one_namespace_leave_room_for_those_of_another(api, router):
    api.cluster.add_tenant("mallory", "eve")
    router.holds = asyncio.Event()
    large = json.dumps({"weight_version_min": 43, "prompt": "x" * 10_000_000}).encode()
    theirs = [
        asyncio.ensure_future(
            api.send(
                "POST", "//fleets/mallory/policy/v1/completions", "eve", data=io.BytesIO(large)
            )
        )
        for _ in range(3)
    ]
    try:
        await soon(lambda: len(router.requests) == 3)
        assert (await api.send("POST", CHAT, data=io.BytesIO(large)))[0] == 200
    finally:
        router.holds.set()
        await asyncio.gather(*theirs)


# --- the key of the public port -------------------------------------------------------------------


async def test_the_key_of_the_public_port_is_sent_for_clients_that_know_only_the_rl_api(
    api, router, behind
):
    router.key = behind.key = KEY
    (api.public_keys / "rl.policy").write_text(f"{KEY}\n")
    (api.keys / "rl.policy").write_text(STATIC_KEY)

    assert (await api.send("POST", CHAT, json={}))[0] == 200
    assert (await api.send("POST", f"//t/{STATIC_KEY}/fleets/rl/policy{CHAT}", None, json={}))[
        0
    ] == 200
    own = {"X-Upstream-Authorization": "Bearer another-key"}
    assert (await api.send("POST", CHAT, json={}, headers=own))[0] == 401
    assert [headers["authorization"] for _, headers, _ in router.requests] == [
        f"Bearer {KEY}",
        f"Bearer {KEY}",
        "Bearer another-key",
    ]


async def test_prime_rl_is_ready_at_the_one_address_of_a_fleet_with_a_key(api, router):
    router.key = KEY
    (api.public_keys / "rl.policy").write_text(KEY)
    api.cluster.fleet["status"]["conditions"] = [condition("Available", "MinimumServing", 1)]
    orchestrator = PrimeRl(str(api.http.make_url("/fleets/rl/policy/v1")), READER)

    assert await asyncio.to_thread(orchestrator.wait_for_ready, "qwen", timeout_seconds=20) == 8
    orchestrator.close()


@pytest.mark.parametrize("content", ["", "\n\n", "a wrong key", "Schlüssel"])
async def test_a_key_that_the_workers_refuse_is_401_with_the_place_for_the_right_one(
    api, router, behind, content
):
    router.key = behind.key = KEY
    (api.public_keys / "rl.policy").write_text(content)
    status, problem = await api.send("POST", CHAT, json={})

    assert (status, problem["reason"]) == (401, "PublicKeyRefused")
    assert "--public-keys-folder" in problem["detail"]


async def test_a_request_whose_key_a_router_drops_goes_to_the_service(api, router, behind):
    (api.public_keys / "rl.policy").write_text(KEY)
    router.key, behind.key = "never-right", KEY

    assert (await api.send("POST", "/tokenize", json={"prompt": "x"}))[0] == 200
    assert (len(router.requests), len(behind.requests)) == (0, 1)


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions/tokens", "/v1/responses", "/v1/messages", "/v1/completions"]
)
async def test_a_demand_header_reaches_a_worker_on_every_route_of_a_fleet_with_a_router(
    api, router, path
):
    router.loses_headers_on_other_routes = True
    headers = {"x-weight-version-min": "43"}

    answer = await api.send("POST", path, json={"prompt": "x"}, headers=headers)
    assert answer == (200, {"version": 43})


# --- sessions -------------------------------------------------------------------------------------


async def test_the_end_of_a_session_reaches_the_router_and_is_200_without_one(api, router):
    path = "/finish_session?session_id=rollout-17"
    assert (await api.send("POST", path))[0] == 200
    assert [path for path, _, _ in router.requests] == [path]
    assert (await api.send("POST", path, None))[0] == 401

    del api.cluster.fleet["spec"]["router"]
    api.cluster.fleet["metadata"]["name"] = "plain"
    api.cluster.rights["system:serviceaccount:rl:reader"].add(
        ("get", "inferencefleets", "rl", "plain")
    )
    assert (await api.send("POST", f"//fleets/rl/plain{path}"))[0] == 200
    assert len(router.requests) == 1
