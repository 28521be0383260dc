"""Answers that need no credentials come in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import pytest
from prometheus_client import CollectorRegistry
from tests.support import virtual_time
from tests.support.admin_ports import OperatorPort
from tests.support.fake_server import FakePort

from fleet_worker.http.asgi import App, ClientGoneError, Receive, Scope, Send
from fleet_worker.http.strangers import TURN, Strangers
from fleet_worker.http.unauthenticated import MetricsApp
from fleet_worker.lifecycle.metrics import WorkerMetrics
from fleet_worker.protocol import READY_PATH


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


def test_a_kubelet_waits_for_no_flood_of_new_addresses() -> None:
    """A client may have any number: they came first, and at 210 in a second nearly all probes had no answer."""
    for rate in (210.0, 2000.0):
        waits = virtual_time.run(waits_of_a_kubelet(next_to_new_addresses=rate))
        assert len(waits) == 60
        assert max(waits) < 0.5


async def waits_of_a_kubelet(*, next_to_new_addresses: float) -> list[float]:
    """How long the probes of a minute wait. The first one is answered before the flood begins."""
    strangers, waits = Strangers(), list[float]()

    async def flood() -> None:
        for number in range(int(70 * next_to_new_addresses)):
            turn = strangers.turn(f"2001:db8::{number:x}", READY_PATH)
            asyncio.get_running_loop().call_later(5, give_up, turn)
            await asyncio.sleep(1 / next_to_new_addresses)

    await strangers.turn("node", READY_PATH)
    flooding = asyncio.create_task(flood())
    for _ in range(60):
        await asyncio.sleep(1)
        began, turn = virtual_time.now(), strangers.turn("node", READY_PATH)
        asyncio.get_running_loop().call_later(5, give_up, turn)
        await asyncio.wait([turn])
        waits.append(virtual_time.now() - began)
    flooding.cancel()
    return waits


def give_up(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.cancel()


async def test_of_more_new_addresses_than_can_be_answered_the_newest_come_first() -> None:
    assert await order_of("a", "b", "c", "d") == ["a", "d", "c", "b"]


def test_a_new_address_waits_for_few_answers_next_to_many_that_never_stop() -> None:
    """It is the kubelet of a worker that has just started."""

    async def story() -> float:
        strangers = Strangers()

        async def never_stop(address: str) -> None:
            while True:
                await strangers.turn(address)

        pods = [asyncio.create_task(never_stop(f"pod-{n}")) for n in range(500)]
        await asyncio.sleep(60)
        began = virtual_time.now()
        await strangers.turn("node", READY_PATH)
        for each in pods:
            each.cancel()
        return virtual_time.now() - began

    assert virtual_time.run(story()) < 0.1


async def test_nothing_of_new_addresses_stays_whose_clients_left() -> None:
    strangers = Strangers()
    gone = [strangers.turn(f"2001:db8::{n:x}") for n in range(5000)]
    for each in gone:
        each.cancel()
    await asyncio.sleep(0)
    assert (len(strangers._new), len(strangers._waiting)) == (0, 0)


@pytest.mark.parametrize(("busy_seconds", "least", "most"), [(0.02, 190, 200), (0.5, 10, 22)])
def test_a_busy_loop_gives_as_many_answers_in_a_second_up_to_a_bound(
    busy_seconds: float, least: int, most: int
) -> None:
    """The rate of answers was 50 in a second where the loop took 20 ms for everything else, and probes came late."""

    async def story() -> float:
        loop, strangers, answers = asyncio.get_running_loop(), Strangers(), 0
        assert isinstance(loop, virtual_time.VirtualTimeLoop)

        async def never_stop(address: str) -> None:
            nonlocal answers
            while True:
                await strangers.turn(address)
                answers += 1

        pods = [asyncio.create_task(never_stop(f"pod-{n}")) for n in range(300)]
        until = loop.time() + 10
        while loop.time() < until:
            loop.be_busy(busy_seconds)
            await asyncio.sleep(0)
        for each in pods:
            each.cancel()
        return answers / 10

    assert least <= virtual_time.run(story()) <= most


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
