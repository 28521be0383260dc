"""The ports: their addresses, and clients that send something else than HTTP."""

from __future__ import annotations

import asyncio
import logging

import aiohttp
import pytest
from aiohttp import web
from tests.support.families import IPV4, IPV6, needs_ipv6, url_of

from fleet_api.health import add_health
from fleet_api.lifecycle import Lifecycle
from fleet_api.listeners import listening
from fleet_api.settings import Settings
from free_ports import free_port

KEY = "a-static-key-of-policy"


async def answer_to(port: int, request: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request.encode("latin-1"))
    status = await asyncio.wait_for(reader.readline(), 10)
    writer.close()
    await writer.wait_closed()
    return status


@pytest.mark.parametrize(
    "request_text",
    [
        f"GET /t/{KEY}/fleets/rl/policy/health a HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /t/{KEY}/fleets/rl/policy/health HTTP/9.x\r\nHost: a\r\n\r\n",
        f"GET /t/{KEY}\xff/fleets/rl/policy/health HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET http://[::1/t/{KEY}/fleets/rl/policy/health HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET /t/{KEY}/fleets/rl/policy/health?{'a' * 9000} HTTP/1.1\r\nHost: a\r\n\r\n",
        f"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\x00\r\n\r\n",
    ],
    ids=["space", "version", "not-ascii", "host", "long", "header"],
)
async def test_a_request_that_is_not_http_leaves_a_line_without_its_key(caplog, request_text):
    caplog.set_level(logging.DEBUG)
    settings = Settings(host="127.0.0.1", port=free_port())
    async with listening(*(web.Application() for _ in range(3)), settings):
        assert b" 400 " in await answer_to(settings.port, request_text)

    (line,) = [one for one in caplog.records if one.name.startswith("fleet_api")]
    assert (line.levelname, "127.0.0.1" in line.getMessage()) == ("WARNING", True)
    assert KEY not in caplog.text


@needs_ipv6
async def test_each_port_listens_on_the_addresses_of_both_families():
    settings = Settings(port=free_port(), metrics_port=free_port(), probe_port=free_port())
    found = []
    async with (
        listening(*(web.Application() for _ in range(3)), settings),
        aiohttp.ClientSession() as session,
    ):
        for port in (settings.port, settings.metrics_port, settings.probe_port):
            for address in (IPV4, IPV6):
                async with session.get(url_of(address, port)) as response:
                    found.append(response.status)

    assert found == [404] * 6


async def test_the_port_of_the_probes_serves_them_and_no_fleet():
    lifecycle = Lifecycle()
    probes = add_health(web.Application(), lifecycle.not_ready)
    settings = Settings(host="127.0.0.1", port=free_port(), probe_port=free_port())
    found = []
    async with (
        listening(web.Application(), web.Application(), probes, settings),
        aiohttp.ClientSession() as session,
    ):
        for _ in range(2):
            for path in ("/livez", "/readyz", "/fleets/rl/policy/v1/models"):
                async with session.get(f"http://127.0.0.1:{settings.probe_port}{path}") as reply:
                    found.append(reply.status)
            lifecycle.stopping.set()

    assert found == [200, 200, 404, 200, 503, 404]
