"""Replies that clients do not read, and bodies that nothing reads, cost other namespaces nothing."""

from __future__ import annotations

import asyncio
import io
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, suppress

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.certificates import issue
from tests.support.fake_cluster import READER
from tests.support.waiting import soon
from tests.unit.fleet_api.conftest import Api

import fleet_api.app
from fleet_api import listeners, passed_body, passed_reply
from fleet_api.connections import RECEIVED_BYTES, socket_of
from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings
from free_ports import free_port

CHAT = "/v1/chat/completions"
EVE = "eve"
HELD = "held"
UNREAD = 60
PART = b"x" * 10_000
BODY = b"".join(b"%08x" % n for n in range(500_000))
UNREAD_BYTES = 20 * (RECEIVED_BYTES + 3 * len(PART))


class FakeUpstream:
    """Workers whose replies have no end, one part, or none yet."""

    def __init__(self) -> None:
        self.open = 0
        self.sent_bytes = 0
        self.waiting = False
        self.go_on = asyncio.Event()
        self.headers: dict[str, str] = {}
        app = web.Application(client_max_size=2 * len(BODY))
        app.router.add_post(CHAT, self._answer)
        self.server = TestServer(app)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.content_length == len(BODY):
            self.waiting = True
            await self.go_on.wait()
            return web.Response(body=await request.read())
        endless = await request.json()
        reply = web.StreamResponse(headers=self.headers)
        await reply.prepare(request)
        self.open += 1
        try:
            if endless == HELD:
                await self.go_on.wait()
            await reply.write(PART)
            while endless:
                await reply.write(PART)
                self.sent_bytes += len(PART)
        finally:
            self.open -= 1
        return reply


@pytest.fixture
async def fake_upstream() -> AsyncIterator[FakeUpstream]:
    made = FakeUpstream()
    await made.server.start_server()
    yield made
    await made.server.close()


@pytest.fixture
def upstream(fake_upstream: FakeUpstream) -> str:
    return str(fake_upstream.server.make_url("")).rstrip("/")


@pytest.fixture(autouse=True)
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passed_reply, "UNREAD_BYTES", UNREAD_BYTES)


async def endless(
    api: Api, stack: AsyncExitStack, what: bool | str = True
) -> aiohttp.ClientResponse:
    """A reply of the other tenant that its client does not read."""
    connector = aiohttp.TCPConnector(socket_factory=socket_of)
    http = await stack.enter_async_context(
        aiohttp.ClientSession(connector=connector, read_bufsize=1024)
    )
    url = api.http.make_url(f"/fleets/mallory/policy{CHAT}")
    reply = await http.post(url, json=what, headers={"Authorization": f"Bearer {EVE}"})
    stack.callback(reply.close)
    assert reply.status == 200
    return reply


async def test_replies_that_a_tenant_does_not_read_end_beyond_its_share(api, fake_upstream):
    api.cluster.add_tenant("mallory", EVE)
    own = f"/fleets/rl/policy{CHAT}"
    async with AsyncExitStack() as stack:
        for _ in range(UNREAD):
            await endless(api, stack)

        await soon(lambda: fake_upstream.open <= UNREAD / 2)
        headers = {"Authorization": f"Bearer {READER}"}
        async with api.http.post(own, json=False, headers=headers) as reply:
            assert (reply.status, await reply.read()) == (200, PART)
        assert fake_upstream.open > 0, "those within the share wait"


async def test_replies_with_long_heads_and_without_a_part_end_beyond_the_share(api, fake_upstream):
    api.cluster.add_tenant("mallory", EVE)
    fake_upstream.headers = {f"x-{n}": "y" * 1000 for n in range(20)}
    async with AsyncExitStack() as stack:
        for _ in range(UNREAD):
            await endless(api, stack, HELD)

        await soon(lambda: fake_upstream.open <= UNREAD / 2)
        fake_upstream.go_on.set()


@pytest.mark.parametrize(
    "headers", [{"x-a": "y" * 2000}, {f"x-{n}": "y" for n in range(40)}], ids=["long", "many"]
)
async def test_a_reply_with_a_head_beyond_the_limit_is_503(api, fake_upstream, headers):
    fake_upstream.headers = headers
    assert (await api.send("POST", CHAT, json=False))[0] == 503


async def test_a_reply_that_is_read_late_arrives_whole(api, fake_upstream):
    api.cluster.add_tenant("mallory", EVE)
    async with AsyncExitStack() as stack:
        reply = await endless(api, stack)
        await soon(lambda: fake_upstream.sent_bytes > 0)
        wanted = 2000 * len(PART)  # more than all buffers hold
        assert fake_upstream.sent_bytes < wanted
        assert len(await reply.content.readexactly(wanted)) == wanted


async def test_a_body_that_a_worker_reads_late_arrives_whole(api, fake_upstream):
    headers = {"Authorization": f"Bearer {READER}"}
    url = f"/fleets/rl/policy{CHAT}"
    sending = asyncio.create_task(api.http.post(url, data=io.BytesIO(BODY), headers=headers))
    await soon(lambda: fake_upstream.waiting or sending.done())
    fake_upstream.go_on.set()
    async with await sending as reply:
        assert await reply.read() == BODY


async def test_a_body_that_a_worker_never_reads_is_503(api, fake_upstream, monkeypatch):
    """Its client may have left, which is not seen while the body is held back."""
    monkeypatch.setattr(passed_body, "UNREAD_SECONDS", 0.2)
    headers = {"Authorization": f"Bearer {READER}"}
    url = f"/fleets/rl/policy{CHAT}"
    async with api.http.post(url, data=io.BytesIO(BODY), headers=headers) as reply:
        assert reply.status == 503
        assert (await reply.json())["reason"] == "NoReply"
    fake_upstream.go_on.set()


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("token", [READER, "unknown"], ids=["for a worker", "of a stranger"])
async def test_a_body_that_is_not_read_stays_with_its_client(
    cluster, monkeypatch, tmp_path, token, is_tls
):
    """Three hundred of them filled the memory of the process."""
    monkeypatch.setattr(fleet_api.app, "REFUSED_SECONDS", 60.0)
    monkeypatch.setattr(listeners, "SHUTDOWN_SECONDS", 0.1)
    certificate, key = issue(tmp_path, "localhost")
    flags = [f"--tls-cert={certificate}", f"--tls-key={key}"] if is_tls else []
    settings = parse_settings(["--host=127.0.0.1", f"--port={free_port()}", *flags])
    app = build(settings, cluster, Lifecycle(), Metrics())
    others = (web.Application(), web.Application())
    head = f"POST /fleets/rl/policy{CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {token}\r\n"
    tls = ssl.create_default_context(cafile=str(certificate)) if is_tls else None

    def taken() -> int:
        """The bytes of a body that are taken from its client."""
        plain = socket.create_connection(("127.0.0.1", settings.port))
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, RECEIVED_BYTES)
        with tls.wrap_socket(plain, server_hostname="localhost") if tls else plain as made:
            made.sendall(f"{head}Content-Length: 4000000\r\n\r\n".encode())
            made.settimeout(1)
            size = 0
            with suppress(TimeoutError):
                while size < 4_000_000:
                    size += made.send(PART)
            return size

    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        cluster.lead(f"http://127.0.0.1:{silent.getsockname()[1]}")
        async with listeners.listening(app, *others, settings):
            size = await asyncio.to_thread(taken)
    assert size < 400_000
