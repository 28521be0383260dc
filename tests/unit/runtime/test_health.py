"""/livez and /readyz, and /metrics on another port."""

from __future__ import annotations

import aiohttp
import pytest
from tests.support.families import IPV4, IPV6, needs_ipv6, url_of

from fleet_operator.errors import Terminal
from fleet_operator.runtime import health
from fleet_operator.runtime.metrics import Metrics
from free_ports import free_port


@pytest.fixture
def port() -> int:
    return free_port()


async def answer(port: int, path: str) -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}{path}") as response,
    ):
        return response.status, await response.text(), response.headers["Content-Type"]


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
@pytest.mark.parametrize(
    ("problem", "status", "text"),
    [
        pytest.param("", 200, "ok\n", id="all is well"),
        pytest.param(
            "the lease ran out", 503, "the lease ran out\n", id="the problem is in the answer"
        ),
    ],
)
async def test_probes(port, path, problem, status, text):
    checks = {"live": lambda: "", "ready": lambda: ""}
    checks["live" if path == "/livez" else "ready"] = lambda: problem
    runner = await health.serve_probes(port, **checks)
    try:
        assert (await answer(port, path))[:2] == (status, text)
    finally:
        await runner.cleanup()


async def test_a_process_that_is_ready_may_have_a_warning(port):
    checks = {"live": lambda: "", "ready": lambda: "", "warning": lambda: "the CRDs are older"}
    runner = await health.serve_probes(port, **checks)
    try:
        assert (await answer(port, "/readyz"))[:2] == (200, "ok\nwarning: the CRDs are older\n")
        assert (await answer(port, "/livez"))[:2] == (200, "ok\n")
    finally:
        await runner.cleanup()


@needs_ipv6
async def test_the_port_listens_on_the_addresses_of_both_families(port):
    runner = await health.serve_probes(port, live=lambda: "", ready=lambda: "")
    found = []
    try:
        async with aiohttp.ClientSession() as session:
            for address in (IPV4, IPV6):
                async with session.get(f"{url_of(address, port)}/readyz") as response:
                    found.append(response.status)
    finally:
        await runner.cleanup()

    assert found == [200, 200]


async def test_metrics_come_in_the_prometheus_format(port):
    runner = await health.serve_metrics(port, Metrics())
    try:
        status, text, kind = await answer(port, "/metrics")
    finally:
        await runner.cleanup()

    assert status == 200
    assert kind.startswith("text/plain; version=")
    assert 'rlfleet_operator_leading{operator=""} 0.0' in text


async def test_nothing_else_is_served(port):
    runner = await health.serve_probes(port, live=lambda: "", ready=lambda: "")
    try:
        assert (await answer(port, "/"))[0] == 404
        assert (await answer(port, "/metrics"))[0] == 404
    finally:
        await runner.cleanup()


async def test_a_port_in_use_ends_the_operator_with_one_sentence(port):
    runner = await health.serve_probes(port, live=lambda: "", ready=lambda: "")
    try:
        with pytest.raises(Terminal, match=f"port {port} is not available"):
            await health.serve_probes(port, live=lambda: "", ready=lambda: "")
    finally:
        await runner.cleanup()
