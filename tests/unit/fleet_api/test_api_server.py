"""The RL API's requests to the API server: cheap next to any number of watches, and with the errors of the client."""

from __future__ import annotations

import asyncio
import cProfile
import gzip
import json
import ssl
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.waiting import eventually_async
from tests.unit.fleet_api.test_tls import issue

from fleet_api.api_server import ApiServer
from fleet_api.loop_time import LoopTime
from free_ports import free_port
from rlfleet import NotConfigured, NotFound, RlfleetError, Unavailable
from rlfleet.kubeconfig import Access
from rlfleet.ports import Kind

LIMIT = 100_000
WATCHES = 150
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


def kube_at(url: str, **more: Any) -> ApiServer:
    given: dict[str, Any] = {"server": url, "namespace": "rl", "token": lambda: "t"}
    access = Access(**given | {"tls": ssl.create_default_context()} | more)
    return ApiServer(access, "tests", LIMIT, json.loads)


@asynccontextmanager
async def serving(answer: Answer, **more: Any) -> AsyncIterator[ApiServer]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    async with TestServer(app) as server:
        kube = kube_at(str(server.make_url("")).rstrip("/"), **more)
        try:
            yield kube
        finally:
            await kube.close()


async def test_a_request_arrives_with_its_body_and_the_answer_is_its_object():
    seen: list[Any] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        seen.append((request.method, request.path_qs, request.content_type, await request.json()))
        packed = gzip.compress(b'{"a": 1}')
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    async with serving(answer) as kube:
        assert await kube.patch(Kind.WEIGHTS, "policy", {"spec": {}}) == {"a": 1}
    path = "/apis/rlfleet.dev/v1alpha1/namespaces/rl/weightversions/policy"
    query = "?fieldManager=tests&fieldValidation=Strict"
    assert seen == [("PATCH", path + query, "application/merge-patch+json", {"spec": {}})]


async def test_a_request_costs_the_same_next_to_many_watches():
    held, all_held = 0, asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal held
        if "watch" not in request.query:
            return web.json_response({"a": 1})
        response = web.StreamResponse()
        await response.prepare(request)
        held += 1
        if held == WATCHES:
            all_held.set()
        await asyncio.Event().wait()
        return response

    async def calls_of_a_request() -> int:
        await kube.get(Kind.FLEETS, "policy")
        with cProfile.Profile() as profile:
            await kube.get(Kind.FLEETS, "policy")
        return sum(entry.callcount for entry in profile.getstats())

    async def watch() -> None:
        async for _ in kube.watch(Kind.WEIGHTS, "policy", "1", 60):
            pass

    async with serving(answer) as kube:
        alone = await calls_of_a_request()
        watches = [asyncio.create_task(watch()) for _ in range(WATCHES)]
        try:
            async with asyncio.timeout(30):
                await all_held.wait()
            assert await calls_of_a_request() < 1.5 * alone
        finally:
            for task in watches:
                task.cancel()
            await asyncio.gather(*watches, return_exceptions=True)


async def test_a_token_is_read_without_a_thread_unless_a_program_gives_it():
    read_in: list[int] = []

    def token() -> str:
        read_in.append(threading.get_ident())
        return "t"

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response({"token": request.headers["Authorization"]})

    for blocks in (False, True):
        async with serving(answer, token=token, token_blocks=blocks) as kube:
            assert await kube.get(Kind.FLEETS, "policy") == {"token": "Bearer t"}

    first, second = read_in
    assert first == threading.get_ident() != second


async def test_an_answer_beyond_the_limit_ends_its_connection():
    connections: list[asyncio.BaseTransport] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        assert request.transport is not None
        connections.append(request.transport)
        while True:
            await response.write(b"x" * 10_000)

    async with serving(answer) as kube:
        with pytest.raises(RlfleetError, match=f"{LIMIT} bytes"):
            await kube.get(Kind.FLEETS, "policy")

        async def is_closed() -> bool:
            return connections[0].is_closing()

        await eventually_async(is_closed)


async def test_errors_keep_their_meaning():
    async def answer(request: web.Request) -> web.StreamResponse:
        match request.path.rpartition("/")[2]:
            case "cut":
                assert request.transport is not None
                request.transport.abort()
            case "elsewhere":
                raise web.HTTPFound("/apis/other")
        return web.json_response({"details": {"name": "x"}}, status=404)

    async with serving(answer) as kube:
        for name, error in (("gone", NotFound), ("cut", Unavailable), ("elsewhere", NotConfigured)):
            with pytest.raises(error):
                await kube.get(Kind.FLEETS, name)
    kube = kube_at(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(Unavailable, match="does not answer"):
        await kube.get(Kind.FLEETS, "policy")
    await kube.close()


async def test_a_silent_watch_ends():
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await asyncio.Event().wait()
        return response

    async with serving(silent) as kube:
        with pytest.raises(Unavailable):
            async for _ in kube.watch(Kind.WEIGHTS, "policy", "1", 0.3):
                pass


async def test_changes_come_at_the_pace_of_the_share_of_their_tenant():
    event = b'{"type": "MODIFIED", "object": {}}\n'
    shares = LoopTime(time.monotonic)
    shares.note("victim", 0.01)
    at: list[float] = []

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.Response(body=event * 2)

    async def follow() -> None:
        async for _ in kube.watch(Kind.WEIGHTS, "policy", "1", 60):
            at.append(time.monotonic())
            shares.note("mallory", 1.5)

    async with serving(answer) as kube:
        await shares.share("mallory", follow())
    assert at[1] - at[0] > 0.1


async def test_the_certificate_of_the_server_must_be_trusted(tmp_path):
    certificate, key = issue(tmp_path, "localhost")
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(certificate, key)

    async def answer(_: web.Request) -> web.StreamResponse:
        return web.json_response({"a": 1})

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server(ssl=own)
    try:
        for name, trusted, is_right in (
            ("localhost", certificate, True),
            ("elsewhere", certificate, False),
            ("localhost", None, False),
        ):
            tls = ssl.create_default_context(cafile=trusted)
            kube = kube_at(f"https://127.0.0.1:{server.port}", tls=tls, server_name=name)
            if is_right:
                assert await kube.get(Kind.FLEETS, "policy") == {"a": 1}
            else:
                with pytest.raises(NotConfigured):
                    await kube.get(Kind.FLEETS, "policy")
            await kube.close()
    finally:
        await server.close()
