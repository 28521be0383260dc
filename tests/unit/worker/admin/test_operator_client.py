"""The operator's client against the worker's admin port, both real."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.admin_ports import OperatorPort
from tests.support.builders import make_worker
from tests.support.worker_harness import WorkerHarness

from fleet_operator.api.fleet import Rollout
from fleet_operator.clients.workers import WorkerClient
from fleet_operator.core import worker_calls
from fleet_operator.ports import Addressee
from fleet_worker.protocol import Epoch, Phase, Reason

EPOCH = Epoch(term=1, sequence=1)
PAUSE = worker_calls.pause(make_worker().serving("base").view(), Rollout(), reason="a test")


@pytest.fixture
async def worker(serving: WorkerHarness, tmp_path: Path) -> AsyncIterator[Addressee]:
    """The real admin port of the pod uid-0, behind a real socket."""
    (tmp_path / "token").write_text("new\nright\n")
    admin = OperatorPort(serving, tmp_path / "token")
    inner = httpx.AsyncClient(transport=httpx.ASGITransport(admin.app), base_url="http://worker")

    async def handle(request: web.Request) -> web.Response:
        reply = await inner.request(
            request.method, request.path, content=await request.read(), headers=request.headers
        )
        return web.Response(status=reply.status_code, body=reply.content, headers=reply.headers)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    server = TestServer(app)
    await server.start_server()
    url = str(server.make_url("")).rstrip("/")
    yield Addressee(base_url=url, token="right", pod_uid="uid-0", instance="i")
    await server.close()


@pytest.fixture
async def client() -> AsyncIterator[WorkerClient]:
    client = WorkerClient()
    yield client
    await client.close()


@pytest.mark.parametrize("token", ["right", "new"])
async def test_the_worker_carries_out_the_operators_call(
    client: WorkerClient, worker: Addressee, serving: WorkerHarness, token: str
) -> None:
    answer = await client.call(replace(worker, token=token), PAUSE, EPOCH)

    assert (answer.silent, answer.reason) == (False, None)
    assert answer.state == serving.state
    assert serving.state.phase is Phase.PAUSED


async def test_a_call_for_another_pod_has_no_effect_and_counts_as_no_answer(
    client: WorkerClient, worker: Addressee, serving: WorkerHarness
) -> None:
    before = serving.state
    answer = await client.call(replace(worker, pod_uid="uid-7"), PAUSE, EPOCH)
    question = await client.state(replace(worker, pod_uid="uid-7"))

    assert (answer.silent, question.silent) == (True, True)
    assert answer.message == "another pod answers at this address: w"
    assert serving.state == before


async def test_a_call_for_an_earlier_process_is_a_refusal(
    client: WorkerClient, worker: Addressee
) -> None:
    answer = await client.call(replace(worker, instance="before"), PAUSE, EPOCH)

    assert (answer.silent, answer.reason) == (False, Reason.STALE_CALL)


async def test_a_call_with_the_token_of_another_fleet_counts_as_no_answer(
    client: WorkerClient, worker: Addressee
) -> None:
    answer = await client.call(replace(worker, token="other"), PAUSE, EPOCH)

    assert (answer.silent, answer.reason) == (True, Reason.UNAUTHORIZED)


async def test_the_same_call_may_be_sent_again(client: WorkerClient, worker: Addressee) -> None:
    """With another nonce: repeating what was lost is always safe."""
    first = await client.call(worker, PAUSE, EPOCH)
    again = await client.call(worker, PAUSE, EPOCH)

    assert (first.reason, again.reason) == (None, None)
