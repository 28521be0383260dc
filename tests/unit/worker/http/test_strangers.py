"""Answers that need no credentials come in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.support.admin_ports import OperatorPort
from tests.support.fake_server import FakePort

from fleet_worker.http.asgi import App, ClientGoneError, Receive, Scope, Send
from fleet_worker.http.strangers import TURN, Strangers
from fleet_worker.http.unauthenticated import MetricsApp
from fleet_worker.lifecycle.metrics import WorkerMetrics


async def test_an_address_with_many_requests_delays_another_one_by_one_turn() -> None:
    assert await order_of("a", "a", "a", "a", "b") == ["a", "b", "a", "a", "a"]


async def test_the_address_that_was_answered_longest_ago_comes_before_any_number_of_others() -> (
    None
):
    pods = [f"pod-{n}" for n in range(300)]
    order = await order_of("node", *pods, *pods, then=["node"])
    assert order.index("node", 1) < len(pods) + 3


async def test_the_answers_of_many_addresses_have_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet_worker.http.strangers.PER_SECOND", 1.0)
    strangers = Strangers()
    turns = [strangers.turn(f"pod-{n}") for n in range(50)]
    assert [turn.done() for turn in turns] == [True, *[False] * 49]
    for turn in turns:
        turn.cancel()


async def order_of(*first: str, then: Sequence[str] = ()) -> list[str]:
    """The order of the answers. `then`: addresses that ask once half of the others have an answer."""
    strangers, came = Strangers(), list[str]()

    async def take(address: str) -> None:
        await strangers.turn(address)
        came.append(address)
        if len(came) == len(first) // 2:
            late.extend(asyncio.create_task(take(each)) for each in then)

    late: list[asyncio.Task[None]] = []
    await asyncio.gather(*map(take, first))
    await asyncio.gather(*late)
    return came


async def test_requests_whose_clients_left_take_no_turns() -> None:
    strangers = Strangers()
    first, *gone, last = (strangers.turn("a") for _ in range(5000))
    await first
    for each in gone:
        each.set_exception(ClientGoneError())
    assert len(await asyncio.gather(*gone, return_exceptions=True)) == 4998
    await asyncio.wait_for(last, 5)


async def turns_of(app: App, method: str, path: str, key: str) -> tuple[int, int]:
    """The status of a request, and how many turns it waited for."""
    waited = []

    async def wait() -> None:
        waited.append(path)

    async def served(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, TURN: wait}, receive, send)

    headers = {"Authorization": f"Bearer {key}"}
    transport = httpx.ASGITransport(served)
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        reply = await client.request(method, path, headers=headers, json={})
    return reply.status_code, len(waited)


@pytest.mark.parametrize(
    ("path", "key", "found"),
    [
        ("/v1/worker/state", "wrong", (401, 1)),
        ("/livez", "", (200, 1)),
        ("/readyz", "", (200, 1)),
        ("/v1/worker/state", "right", (200, 0)),
        ("/unknown", "right", (404, 0)),
    ],
)
async def test_calls_with_the_token_wait_for_no_turn_at_the_admin_port(
    admin: OperatorPort, path: str, key: str, found: tuple[int, int]
) -> None:
    assert await turns_of(admin.app, "GET", path, key) == found


@pytest.mark.parametrize(
    ("path", "key", "found"),
    [
        ("/v1/models", "wrong", (401, 1)),
        ("/pause", "right", (404, 1)),
        ("/readyz", "", (200, 1)),
        ("/v1/models", "right", (200, 0)),
    ],
)
async def test_requests_with_the_key_wait_for_no_turn_at_the_public_port(
    admin: OperatorPort, path: str, key: str, found: tuple[int, int]
) -> None:
    port = FakePort(admin.harness.agent, keys=("right",))
    assert await turns_of(port.app, "GET", path, key) == found
    await port.client.aclose()


@pytest.mark.parametrize(("path", "status"), [("/metrics", 200), ("/", 404)])
async def test_each_request_waits_for_its_turn_at_the_metrics_port(path: str, status: int) -> None:
    app = MetricsApp(WorkerMetrics(CollectorRegistry()).text, clock=lambda: 0.0)
    assert await turns_of(app, "GET", path, "") == (status, 1)
