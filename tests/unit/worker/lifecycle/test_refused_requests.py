"""Requests that vLLM refuses during a pause: 0.33 does, 0.32 queues them. Clients see no difference."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.fake_modules import install
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness

from fleet_worker.engine.vllm_requests import sent_again
from fleet_worker.protocol import PauseMode, Phase


class FakeRetryableRequestError(Exception):
    """vLLM's, of 0.33."""


@pytest.fixture(autouse=True)
def _newer_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, {"vllm.exceptions": {"RetryableRequestError": FakeRetryableRequestError}})


class FakeClient:
    """Refuses requests while the harness's engine is paused."""

    def __init__(self, serving: WorkerHarness, tokens: int = 2) -> None:
        self.serving, self.tokens = serving, tokens
        self.sent: list[tuple[Any, ...]] = []
        self.breaks = False

    async def generate(self, *arguments: Any, **options: Any) -> AsyncGenerator[int, None]:
        self.sent.append((*arguments, options))
        if self.serving.engine.paused:
            raise FakeRetryableRequestError
        for number in range(self.tokens):
            if self.breaks and number:
                raise FakeRetryableRequestError
            yield number

    async def tokens_of(self, request_id: str = "cmpl-1-0") -> list[int]:
        sending = sent_again(self.generate, self.serving.agent)
        return [each async for each in sending("prompt", "parameters", request_id, priority=1)]


async def held(serving: WorkerHarness, client: FakeClient) -> asyncio.Task[list[int]]:
    """A request that was on its way into the engine when the pause began."""
    await serving.pause(PauseMode.ABORT)
    asking = asyncio.create_task(client.tokens_of())
    await soon(lambda: serving.state.requests_held == 1)
    return asking


async def test_a_request_that_vllm_refuses_is_sent_again_after_the_pause(
    serving: WorkerHarness,
) -> None:
    client = FakeClient(serving)
    asking = await held(serving, client)
    assert not asking.done()
    await serving.resume("base")

    assert await asking == [0, 1]
    assert client.sent == [("prompt", "parameters", "cmpl-1-0", {"priority": 1})] * 2


async def test_a_request_that_is_refused_in_a_fence_keeps_vllms_answer(
    serving: WorkerHarness,
) -> None:
    asking = await held(serving, FakeClient(serving))
    await serving.fence()

    with pytest.raises(FakeRetryableRequestError):
        await asking


async def test_a_request_that_its_client_has_aborted_is_not_sent_again(
    serving: WorkerHarness,
) -> None:
    client = FakeClient(serving)
    asking = await held(serving, client)
    serving.agent.held.abort(["1"])
    await serving.resume("base")

    with pytest.raises(FakeRetryableRequestError):
        await asking
    assert len(client.sent) == 1


async def test_a_request_with_tokens_is_never_sent_again(serving: WorkerHarness) -> None:
    client = FakeClient(serving)
    client.breaks = True

    with pytest.raises(FakeRetryableRequestError):
        await client.tokens_of()
    assert len(client.sent) == 1


async def test_what_vllm_refuses_without_a_pause_is_not_sent_again(serving: WorkerHarness) -> None:
    client = FakeClient(serving)
    serving.engine.paused = True

    with pytest.raises(FakeRetryableRequestError):
        await client.tokens_of()
    assert len(client.sent) == 1


async def test_a_request_that_a_pause_has_refused_is_sent_again_if_the_pause_is_over_by_then(
    serving: WorkerHarness,
) -> None:
    client = FakeClient(serving)
    await serving.pause(PauseMode.ABORT)
    since = serving.agent.steps
    await serving.resume("base")

    assert await serving.agent.let_in("cmpl-1-0", since)
    assert await client.tokens_of() == [0, 1]


async def test_a_refused_request_that_its_client_aborts_waits_no_longer(
    serving: WorkerHarness,
) -> None:
    asking = await held(serving, FakeClient(serving))
    serving.agent.held.abort(["1"])

    with pytest.raises(FakeRetryableRequestError):
        await asking
    assert serving.state.requests_held == 0


async def test_a_drain_sends_a_refused_request_again_once_its_engine_generates(
    serving: WorkerHarness,
) -> None:
    client = FakeClient(serving)
    asking = await held(serving, client)
    resuming = serving.engine.gates["resume"] = asyncio.Event()
    serving.agent.quiescence.inside += 1  # as the gate counts it
    draining = asyncio.create_task(serving.agent.drain(patience_seconds=1, drain_timeout_seconds=5))
    await soon(lambda: serving.agent.phase is Phase.DRAINING)
    late = asyncio.create_task(client.tokens_of("cmpl-2-0"))
    await soon(lambda: len(client.sent) == 2)
    resuming.set()

    assert (await asking, await late) == ([0, 1], [0, 1])
    assert len(client.sent) == 4
    serving.agent.quiescence.inside -= 1
    await draining


async def test_a_drain_that_ends_requests_ends_the_wait_of_a_refused_one(
    serving: WorkerHarness,
) -> None:
    asking = await held(serving, FakeClient(serving))
    await serving.agent.drain(patience_seconds=1)

    with pytest.raises(FakeRetryableRequestError):
        await asking


class FakeOutputs:
    """Outputs of vLLM: the first one is there, and the next one is awaited."""

    def __init__(self) -> None:
        self.following = asyncio.get_running_loop().create_future()
        self.closed = False
        self._first = [0]

    def __anext__(self) -> asyncio.Future[int]:
        if not self._first:
            return self.following
        first: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        first.set_result(self._first.pop())
        return first

    async def aclose(self) -> None:
        self.closed = True


async def test_outputs_after_the_first_are_those_of_vllm_itself(serving: WorkerHarness) -> None:
    made = FakeOutputs()
    outputs = sent_again(lambda *_: made, serving.agent)("prompt", "parameters", "cmpl-1-0")

    assert await anext(outputs) == 0
    assert aiter(outputs) is made
    await outputs.aclose()
    assert made.closed
