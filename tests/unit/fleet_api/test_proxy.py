"""Requests of rollout clients through the control root, before an upstream that is a fake."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.fake_cluster import READER, SERVICES, STRANGER
from tests.unit.fleet_api.conftest import Api

CHAT = "/v1/chat/completions"


class FakeUpstream:
    """A router that holds its stream open until the test has read the first part."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.go_on = asyncio.Event()
        self.left = asyncio.Event()
        self.breaks = False
        self.status = 418
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        content = await request.read()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.requests.append((request.method, request.path_qs, headers, content))
        if request.path != CHAT:
            return web.json_response(
                {"data": []},
                status=self.status,
                headers={
                    "x-weight-version-start": "43",
                    "Set-Cookie": "a=b",
                    "Access-Control-Allow-Origin": "*",
                    "X-Accel-Redirect": "/internal",
                    "Retry-After": "3",
                },
            )
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await reply.prepare(request)
        await reply.write(b"data: one\n\n")
        try:
            await self.go_on.wait()
            if self.breaks and request.transport is not None:
                request.transport.close()
                return reply
            await reply.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            self.left.set()
            raise
        return reply


@pytest.fixture
async def fake_upstream() -> AsyncIterator[FakeUpstream]:
    made = FakeUpstream()
    await made.server.start_server()
    yield made
    made.go_on.set()
    await made.server.close()


@pytest.fixture
def upstream(fake_upstream: FakeUpstream) -> str:
    return str(fake_upstream.server.make_url("")).rstrip("/")


@pytest.fixture
def flags() -> list[str]:
    return ["--proxied-body-bytes=100000"]


def chat(api: Api, **headers: str) -> Any:
    return api.http.post(
        f"/fleets/rl/policy{CHAT}",
        json={"stream": True},
        headers={"Authorization": f"Bearer {READER}"} | headers,
    )


async def test_each_part_of_a_stream_comes_before_the_next_one_exists(api, fake_upstream):
    async with chat(api) as reply:
        assert (reply.status, reply.content_type) == (200, "text/event-stream")
        assert await reply.content.readuntil(b"\n\n") == b"data: one\n\n"
        fake_upstream.go_on.set()
        assert await reply.content.read() == b"data: [DONE]\n\n"


async def test_a_client_that_leaves_ends_the_request_at_the_worker(api, fake_upstream):
    reply = await chat(api)
    await reply.content.readuntil(b"\n\n")
    reply.close()

    async with asyncio.timeout(30):
        await fake_upstream.left.wait()


async def test_a_stream_that_breaks_does_not_look_whole(api, fake_upstream):
    fake_upstream.breaks = True
    async with chat(api) as reply:
        await reply.content.readuntil(b"\n\n")
        fake_upstream.go_on.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await reply.content.read()


async def test_a_worker_gets_the_request_and_no_credential_of_the_rl_api(api, fake_upstream):
    headers = {
        "X-Session-ID": "trace-1",
        "x-weight-version-min": "43",
        "X-Upstream-Authorization": "Bearer key-of-the-public-port",
        "Cookie": "session=1",
        "Referer": "http://api/t/a-static-key/fleets/rl/policy",
        "X-Forwarded-For": "10.9.9.9",
        "Connection": "keep-alive, X-Hop",
        "X-Hop": "1",
    }
    status, _ = await api.send("POST", "/tokenize?a=%26", json={"prompt": "x"}, headers=headers)
    ((method, path, got, content),) = fake_upstream.requests

    assert (status, method, path) == (418, "POST", "/tokenize?a=%26")
    assert content == b'{"prompt": "x"}'
    assert (got["x-session-id"], got["x-weight-version-min"]) == ("trace-1", "43")
    assert got["authorization"] == "Bearer key-of-the-public-port"
    assert not {"cookie", "referer", "x-forwarded-for", "x-hop"} & set(got)
    assert READER not in str(got)
    await api.send("POST", "/tokenize", json={})
    assert "authorization" not in fake_upstream.requests[1][2]


async def test_a_reply_has_the_headers_of_weights_and_none_that_steer_a_browser(api):
    async with api.http.get(
        "/fleets/rl/policy/v1/models", headers={"Authorization": f"Bearer {READER}"}
    ) as reply:
        assert reply.headers["x-weight-version-start"] == "43"
        assert reply.headers["Retry-After"] == "3"
        assert reply.headers["X-Content-Type-Options"] == "nosniff"
        assert not {"Set-Cookie", "Access-Control-Allow-Origin", "X-Accel-Redirect"} & set(
            reply.headers
        )


async def test_a_reply_that_changes_the_protocol_is_503(api, fake_upstream):
    """A proxy in front of the RL API would pass on whatever comes on this connection from then on."""
    fake_upstream.status = 101
    reply, problem = await api.get("/v1/models")
    assert (reply, problem["reason"]) == (503, "NoReply")


async def test_a_right_on_another_fleet_reaches_no_worker(api, fake_upstream):
    assert (await api.send("POST", CHAT, STRANGER, json={}))[0] == 403
    assert (await api.send("POST", CHAT, None, json={}))[0] == 401
    assert fake_upstream.requests == []


@pytest.mark.parametrize(
    "path",
    [
        "/add_worker?url=http://evil",
        "/flush_cache",
        "/metrics",
        "/v1/worker/state",
        "/engine/pause_generation",
        "/v1/models/../add_worker",
        "/v1%2Fmodels",
    ],
)
async def test_no_other_route_of_a_router_is_reached(api, fake_upstream, path):
    assert (await api.send("POST", path))[0] in {404, 405}
    assert fake_upstream.requests == []


async def test_a_body_beyond_the_limit_is_413_with_and_without_a_length(api):
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(20):
            yield b"x" * 10_000

    assert (await api.send("POST", "/tokenize", data=b"x" * 100_001))[0] == 413
    assert (await api.send("POST", "/tokenize", data=parts()))[0] == 413


async def test_a_body_of_unknown_length_within_the_limit_arrives_whole(api, fake_upstream):
    async def parts() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield b"x" * 10_000

    await api.send("POST", "/tokenize", data=parts())
    assert fake_upstream.requests[0][3] == b"x" * 90_000


async def test_a_compressed_body_reaches_the_worker_as_it_was_before(api, fake_upstream):
    content = json.dumps({"data": "a" * 5000}).encode()
    async with api.http.post(
        "/fleets/rl/policy/v1/completions",
        data=gzip.compress(content),
        headers={"Authorization": f"Bearer {READER}", "Content-Encoding": "gzip"},
    ) as reply:
        assert reply.status == 418

    ((_, _, headers, received),) = fake_upstream.requests
    assert received == content
    assert "content-encoding" not in headers


async def test_a_small_body_that_decompresses_beyond_the_limit_is_413(api, fake_upstream):
    async with api.http.post(
        "/fleets/rl/policy/v1/completions",
        data=gzip.compress(bytes(10_000_000)),
        headers={"Authorization": f"Bearer {READER}", "Content-Encoding": "gzip"},
    ) as reply:
        assert reply.status == 413
    assert fake_upstream.requests == []


async def test_a_body_that_cannot_be_decompressed_is_400(api):
    status, problem = await api.send(
        "POST", "/v1/completions", data=b"{}", headers={"Content-Encoding": "gzip"}
    )
    assert (status, problem["reason"]) == (400, "BadRequest")


async def test_a_fleet_that_does_not_answer_is_503(api, fake_upstream):
    await fake_upstream.server.close()
    status, problem = await api.send("POST", CHAT, json={})

    assert (status, problem["reason"]) == (503, "NoReply")


async def test_many_requests_read_the_fleet_and_its_service_once_and_leave_no_audit_lines(
    api, caplog
):
    caplog.set_level(logging.INFO)
    for _ in range(5):
        await api.send("POST", "/tokenize", json={})
    await api.send("POST", "/tokenize", STRANGER, json={})

    assert [r for r, _ in api.cluster.objects.requests] == ["get inferencefleets"]
    assert api.cluster.count(f"{SERVICES}policy") == 1
    lines = [one for one in caplog.records if getattr(one, "event", "") == "audit"]
    assert len(lines) == 1, "only the refused one"
