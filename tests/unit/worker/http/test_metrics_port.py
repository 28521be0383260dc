"""Metrics for a scraper that has no key."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import pytest

from fleet_worker.http.unauthenticated import FRESH_SECONDS, MetricsApp


class Rendered:
    """Metrics that tell how often they were rendered, and the clock."""

    def __init__(self) -> None:
        self.times = 0
        self.now = 100.0

    def text(self) -> bytes:
        self.times += 1
        return f"rendered {self.times}\n".encode()


@pytest.fixture
def rendered() -> Rendered:
    return Rendered()


@pytest.fixture
async def scraper(rendered: Rendered) -> AsyncIterator[httpx.AsyncClient]:
    app = MetricsApp(rendered.text, clock=lambda: rendered.now)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        yield client


async def test_metrics_need_no_key_and_have_prometheus_format(scraper):
    reply = await scraper.get("/metrics")

    assert (reply.status_code, reply.text) == (200, "rendered 1\n")
    assert reply.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/metrics/", 404),
        ("GET", "//metrics", 404),
        ("GET", "/v1/models", 404),
        ("POST", "/v1/completions", 404),
        ("PUT", "/v1/worker/fence", 404),
        ("POST", "/metrics", 405),
        ("DELETE", "/metrics", 405),
    ],
)
async def test_other_paths_and_methods_are_404(scraper, rendered, method, path, status):
    reply = await scraper.request(method, path, content=b"x" * 100)

    assert reply.status_code == status
    assert rendered.times == 0


async def test_concurrent_scrapes_render_at_most_once_a_second(scraper, rendered):
    for _ in range(50):
        assert (await scraper.get("/metrics")).text == "rendered 1\n"

    rendered.now += FRESH_SECONDS

    assert (await scraper.get("/metrics?name[]=x")).text == "rendered 2\n"


async def test_a_web_socket_is_refused(rendered):
    sent = []

    async def send(message):
        sent.append(message)

    async def receive():
        raise AssertionError("nothing is read")

    app = MetricsApp(rendered.text, clock=lambda: rendered.now)
    await app({"type": "websocket", "path": "/metrics"}, receive, send)

    assert sent == [{"type": "websocket.close", "code": 1008}]
