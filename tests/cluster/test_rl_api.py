"""The RL API as a process of its own, with the chart's account, on a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from tests.cluster.support.rl_api import ACCOUNT, RlApi
from tests.cluster.support.workspace import FLEET
from tests.support.waiting import eventually_async

from fleet_api.destinations import Destinations
from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings
from rlfleet.kube import AsyncKube
from rlfleet.kubeconfig import load_access

REVOKED_SECONDS = 30
"""As docs/reference/rl-api.md promises, with the reviews that the API server keeps itself."""


async def test_a_token_for_the_api_server_is_refused(api: RlApi) -> None:
    workspace = api.workspace
    await workspace.make_fleet(replicas=1, version="1")
    own = (await workspace.kubectl("create", "token", "default")).strip()
    status, problem = await api.send("GET", "/v1/rl/state", own)

    assert status == 401
    assert "audience rlfleet" in problem["detail"]


async def test_kubernetes_decides_about_each_request(api: RlApi) -> None:
    workspace = api.workspace
    await workspace.make_fleet(replicas=1, version="1")
    reader = await api.account("reader", workspace.namespace, "get")
    trainer = await api.account("trainer", workspace.namespace, "get", "patch")
    elsewhere = f"{workspace.namespace}-other"
    await workspace.make_namespace(elsewhere)
    stranger = await api.account("stranger", elsewhere, "get", "patch")
    publication = {"version": "2", "wait": False}

    for token, status in (("", 401), ("malformed", 401), (stranger, 403), (reader, 200)):
        assert (await api.send("GET", "/v1/rl/state", token))[0] == status
    for token, status in (("", 401), (trainer[:-4], 401), (stranger, 403), (reader, 403)):
        assert (await api.send("PUT", "/v1/rl/weights", token, publication))[0] == status
    assert (await workspace.weights())["spec"]["version"] == "1"

    status, rollout = await api.send("PUT", "/v1/rl/weights", trainer, publication)
    assert (status, rollout["weights"]["desired"]["version"]) == (202, "2")
    weights = await workspace.weights()
    assert weights["spec"]["version"] == "2"
    managers = {entry["manager"] for entry in weights["metadata"]["managedFields"]}
    assert ACCOUNT in managers
    status, state = await api.send("GET", "/v1/rl/state", reader)
    assert (status, state["weights"]["desired"]["version"]) == (200, "2")
    assert await api.send("GET", "/v1/rl/workers", reader) == (
        200,
        {"protocol_version": 1, "namespace": workspace.namespace, "workers": []},
    )


@pytest.mark.long  # tests/unit/fleet_api/test_access.py has the bound on a clock that jumps
async def test_the_token_of_a_deleted_account_is_401_within_the_documented_bound(
    api: RlApi,
) -> None:
    workspace = api.workspace
    await workspace.make_fleet(replicas=1, version="1")
    reader = await api.account("reader", workspace.namespace, "get")
    assert (await api.send("GET", "/v1/rl/state", reader))[0] == 200
    delete = ("-n", workspace.namespace, "delete", "serviceaccount", "reader")
    await asyncio.to_thread(workspace.cluster.kubectl, *delete)

    async def is_refused() -> bool:
        # Each use of the token is one of a cached review, which must not make it last longer.
        return (await api.send("GET", "/v1/rl/state", reader))[0] == 401

    await eventually_async(is_refused, within_seconds=REVOKED_SECONDS)


async def test_a_spec_that_the_api_server_refuses_is_422(api: RlApi) -> None:
    workspace = api.workspace
    await workspace.make_fleet(replicas=1, version="1")
    trainer = await api.account("trainer", workspace.namespace, "get", "patch")
    refused = {"version": "2", "source": {"path": "/weights/../etc"}}

    status, problem = await api.send("PUT", "/v1/rl/weights", trainer, refused)
    assert (status, problem["reason"]) == (422, "Invalid")
    assert (await workspace.weights())["spec"]["version"] == "1"


async def test_a_trainer_that_knows_one_vllm_updates_the_whole_fleet(api: RlApi) -> None:
    workspace = api.workspace
    await workspace.start_operator()
    await workspace.make_fleet(replicas=2, version="1")
    await workspace.applied("1", replicas=2)
    trainer = await api.account("trainer", workspace.namespace, "get", "patch")

    status, health = await api.send("GET", "/health", trainer)
    assert (status, health["total_backends"], health["control_fanout"]) == (200, 2, True)
    assert (await api.send("POST", "/pause?mode=keep&clear_cache=false", trainer))[0] == 200
    step = {"weight_dir": "/weights/step_2"}
    status, reply = await api.send("POST", "/update_weights", trainer, step)
    assert (status, reply["status"], reply["weight_version"]) == (200, "ok", "2")
    assert workspace.serving == ["2", "2"]
    assert (await api.send("POST", "/resume", trainer))[0] == 200

    assert await api.send("GET", "/get_world_size", trainer) == (200, {"world_size": 2})
    managers = {
        entry["manager"] for entry in (await workspace.weights())["metadata"]["managedFields"]
    }
    assert ACCOUNT in managers
    assert (await api.send("POST", "/v1/completions", trainer[:-4], {}))[0] == 401


async def test_no_service_that_a_tenant_makes_under_a_fleets_name_gets_a_request(
    api: RlApi,
) -> None:
    workspace = api.workspace
    await workspace.make_fleet(replicas=1, version="1")
    tenant = await api.account("tenant", workspace.namespace, "get")
    services = f"/api/v1/namespaces/{workspace.namespace}/services"
    uid = (await workspace.fleet())["metadata"]["uid"]
    claimed = {"apiVersion": "rlfleet.dev/v1alpha1", "kind": "InferenceFleet", "name": FLEET}
    owner = {"ownerReferences": [claimed | {"uid": uid, "controller": True}]}
    ports = [{"name": "http", "port": 8000, "targetPort": "http"}]
    by_name = {"type": "ExternalName", "externalName": f"{FLEET}.another.svc", "ports": ports}
    by_hand = {"ports": ports}

    async def reason() -> str:
        status, problem = await api.send("POST", "/v1/completions", tenant, {})
        assert status == 503
        return str(problem["reason"])

    for metadata, spec, expected in (
        ({}, by_name, "NameTaken"),
        (owner, by_name, "NoService"),
        (owner, by_hand, "NoService"),
    ):
        made = {"metadata": {"name": FLEET, **metadata}, "spec": spec}
        await workspace.admin.create(services, {"apiVersion": "v1", "kind": "Service", **made})
        await eventually_async(lambda expected=expected: _is(reason, expected))
        await workspace.admin.delete(f"{services}/{FLEET}")
    await workspace.change_fleet(replicas=0)
    await eventually_async(lambda: _is(reason, "NoWorkers"))


async def _is(reason: Callable[[], Awaitable[str]], expected: str) -> bool:
    """The RL API knows a Service for some seconds."""
    return await reason() == expected


async def test_a_stream_passes_part_by_part_for_an_account_that_may_get_the_fleet(
    api: RlApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    # In this process, since the address of a Service leads nowhere outside of the cluster.
    reader = await api.account("reader", api.workspace.namespace, "get")
    go_on = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: one\n\n")
        await go_on.wait()
        await reply.write(f"data: {request.headers.get('Authorization')}\n\n".encode())
        return reply

    fake_router = web.Application()
    fake_router.router.add_post("/v1/completions", stream)
    kube = AsyncKube(load_access(api.kubeconfig), ACCOUNT)
    path = f"/fleets/{api.workspace.namespace}/{FLEET}/v1/completions"
    async with TestServer(fake_router) as router:
        serving = {"port": router.port, "adminPort": api.workspace.admin_port}
        await api.workspace.start_operator()
        await api.workspace.make_fleet(replicas=1, version="1", serving=serving)
        await api.workspace.applied("1", replicas=1)
        resolve = Destinations.resolve

        async def resolve_here(self: Destinations, *asked: Any, **named: Any) -> Any:
            (found,) = await resolve(self, *asked, **named)
            return [{**found, "host": "127.0.0.1"}]

        monkeypatch.setattr(Destinations, "resolve", resolve_here)
        app = build(parse_settings([]), kube, Lifecycle(), Metrics())
        async with TestClient(TestServer(app)) as client:
            for token, status in ((reader[:-4], 401), (reader, 200)):
                headers = {"Authorization": f"Bearer {token}"}
                async with client.post(path, json={"stream": True}, headers=headers) as reply:
                    assert reply.status == status
                    if status == 200:
                        assert await reply.content.readuntil(b"\n\n") == b"data: one\n\n"
                        go_on.set()
                        assert await reply.content.read() == b"data: None\n\n"
    await kube.close()
