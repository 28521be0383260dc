"""Requests that arrive during a pause wait for its end, and no reply without tokens is a success."""

from __future__ import annotations

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.support.fake_engine import touched
from tests.support.fake_server import ONE, FakeChoice, FakePort, ended
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, WorkerHarness, failing, refused

from fleet_worker.http.asgi import Message
from fleet_worker.protocol import ABORT_ROUTE, DATA_ROUTES, PauseMode, Phase, Reason

MODES = list(PauseMode)
ROUTES = sorted(DATA_ROUTES - {ABORT_ROUTE})
NEEDS_IDS = "/v1/chat/completions/tokens"
"""The fake server's replies have no ids."""
BODIES: dict[str, dict[str, Any]] = {
    "/inference/v1/generate": {"token_ids": [1], "sampling_params": {}},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/chat/completions/batch": {"messages": [[{"role": "user", "content": "x"}]]},
    "/v1/chat/completions/tokens": {"tokens": [1], "messages": [{"role": "user", "content": "x"}]},
    "/v1/completions": {"prompt": "x"},
    "/v1/messages": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 5},
    "/v1/responses": {"input": "x"},
}


class Held:
    """A request that arrives during a pause."""

    def __init__(self, port: FakePort, harness: WorkerHarness) -> None:
        self.port, self.harness = port, harness
        port.server.prompts = [ONE]

    async def begin(
        self, mode: PauseMode = PauseMode.KEEP, path: str = "/v1/completions", **asked: Any
    ) -> asyncio.Task[httpx.Response]:
        """Pause the worker, and send a request."""
        await self.harness.pause(mode)
        return await self.send(path, **asked)

    async def send(
        self, path: str = "/v1/completions", **asked: Any
    ) -> asyncio.Task[httpx.Response]:
        before = self.harness.state.requests_held
        asking = asyncio.create_task(self.port.ask(path, **{**BODIES[path], **asked}))
        await soon(lambda: self.harness.state.requests_held == before + 1)
        assert self.port.server.asked == [], "it has not reached vLLM"
        return asking


@pytest.fixture
def held(port: FakePort, serving: WorkerHarness) -> Held:
    return Held(port, serving)


# --- the wait --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", ROUTES)
async def test_a_request_that_arrives_during_a_pause_is_served_after_it(
    held: Held, mode: PauseMode, path: str
) -> None:
    """Also over a load, before which the engine is paused once more in the mode of the pause."""
    harness = held.harness
    await harness.stage("1")
    asking = await held.begin(mode, path)
    await harness.load("1")
    assert not asking.done()
    held.port.server.prompts = [[[ended(0, ("1", 0, 2))]]]
    await harness.resume("1")

    reply = await asking
    assert len(held.port.server.asked) == 1
    if path != NEEDS_IDS:
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-weight-version-start"] == "1"
    assert harness.state.requests_held == 0


async def test_a_request_that_arrives_during_a_drain_waits_like_one_during_a_pause(
    held: Held,
) -> None:
    harness = held.harness
    harness.engine.gates["pause wait"] = asyncio.Event()
    pausing = asyncio.create_task(harness.pause(PauseMode.WAIT))
    await soon(lambda: harness.state.phase is Phase.PAUSING)
    asking = await held.send()
    harness.engine.gates["pause wait"].set()
    await pausing
    assert not asking.done()
    await harness.resume("base")

    assert (await asking).status_code == 200


async def test_a_stronger_pause_ends_no_request_that_arrived_during_the_first(held: Held) -> None:
    asking = await held.begin(PauseMode.KEEP)
    await held.harness.pause(PauseMode.ABORT)
    assert not asking.done()
    await held.harness.resume("base")

    assert (await asking).status_code == 200


async def test_a_request_that_waits_over_two_pauses_is_served_after_the_second(held: Held) -> None:
    asking = await held.begin()
    await held.harness.resume("base")
    await held.harness.pause()  # before the request has noticed
    await asyncio.sleep(0)
    assert not asking.done()
    assert held.port.server.asked == []
    await held.harness.resume("base")

    assert (await asking).status_code == 200


async def test_a_pause_whose_lease_ends_lets_its_requests_go_on(held: Held) -> None:
    asking = await held.begin(PauseMode.ABORT)
    held.harness.clock.now += 31
    await held.harness.agent.expire_lease()

    assert (await asking).status_code == 200


async def test_a_demand_is_checked_again_after_the_wait(held: Held) -> None:
    harness = held.harness
    await harness.stage("1")
    asking = await held.begin(weight_version_exact="base")
    await harness.load("1")
    await harness.resume("1")

    reply = await asking
    assert (reply.status_code, reply.headers["x-weight-version"]) == (409, "1")
    assert held.port.server.asked == []


@pytest.mark.parametrize("end", ["fence", "broken load", "lease after a load", "drain"])
async def test_a_request_that_waits_for_a_worker_that_closes_is_sent_to_another(
    held: Held, end: str
) -> None:
    harness = held.harness
    await harness.stage("1")
    asking = await held.begin()
    if end == "fence":
        await harness.fence()
    elif end == "broken load":
        harness.engine.failures["load"] = [touched()]
        await failing(harness.load("1"))
    elif end == "lease after a load":
        await harness.load("1")
        harness.clock.now += 31
        await harness.agent.expire_lease()
    else:
        await harness.agent.drain(patience_seconds=1)

    reply = await asking
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert reply.headers["connection"] == "close"
    assert held.port.server.asked == []
    assert harness.agent.quiescence.inside == 0


async def test_a_drain_lets_waiting_requests_finish_first(held: Held) -> None:
    """As the requests that the engine holds."""
    asking = await held.begin()
    await held.harness.agent.drain(patience_seconds=1, drain_timeout_seconds=30)

    assert (await asking).status_code == 200
    assert (await held.port.ask()).status_code == 429


async def test_a_client_that_goes_leaves_its_place(held: Held) -> None:
    await held.harness.pause()
    gone, sent = asyncio.Event(), []

    async def receive() -> Message:
        if not sent:
            sent.append(True)
            return {"type": "http.request", "body": b"{}", "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(f"the client has gone, and gets {message}")

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    serving = asyncio.create_task(held.port.app({**scope, "app": SimpleNamespace()}, receive, send))
    await soon(lambda: held.harness.state.requests_held == 1)
    gone.set()
    await serving

    assert held.harness.state.requests_held == 0
    assert held.harness.agent.quiescence.inside == 0


async def test_a_fence_that_is_refused_ends_no_request_that_waits(held: Held) -> None:
    asking = await held.begin()
    assert (await refused(held.harness.fence(drain=5))).reason is Reason.WRONG_PHASE
    assert not asking.done()
    await held.harness.resume("base")

    assert (await asking).status_code == 200


# --- aborts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("named", ["mine", "cmpl-mine-0"])
async def test_a_client_aborts_its_own_request_during_a_pause(held: Held, named: str) -> None:
    mine = await held.begin(request_id="mine")
    other = await held.send(request_id="other")
    held.port.server.prompts = [ONE]
    aborted = await held.port.client.post(ABORT_ROUTE, json={"request_ids": [named, 7]})
    held.port.server.asked.clear()

    assert aborted.status_code == 200, "it does not wait for the end of the pause"
    reply = await mine
    assert (reply.status_code, reply.json()["error"]["type"]) == (400, "RequestAbortedError")
    assert not other.done()
    await held.harness.resume("base")
    assert (await other).status_code == 200


@pytest.mark.parametrize("ids", [None, ["mine"]], ids=["all", "by id"])
async def test_a_trainer_ends_requests_that_wait(held: Held, ids: list[str] | None) -> None:
    seat = TrainerHarness.of(held.harness).seat
    await seat.pause(HOLDER, PauseMode.KEEP)
    asking = await held.send(request_id="mine")

    assert await seat.abort(ids) == 1
    assert (await asking).status_code == 429
    await seat.resume(HOLDER)


async def test_the_answer_to_a_trainers_pause_counts_the_requests_that_wait(held: Held) -> None:
    seat = TrainerHarness.of(held.harness).seat
    await seat.pause(HOLDER, PauseMode.KEEP)
    asking = await held.send()

    assert await seat.pause(HOLDER, PauseMode.KEEP) == 1
    await seat.resume(HOLDER)
    assert (await asking).status_code == 200


# --- replies without tokens ---------------------------------------------------------------------------


def aborted(index: int, *, tokens: int = 0) -> FakeChoice:
    """A choice that the engine has ended with the tokens that it has."""
    span = SimpleNamespace(version="base", start=0, end=tokens)
    return FakeChoice(index, "abort", [span] if tokens else [], list(range(tokens)))


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_reply_without_tokens_is_an_error_that_a_client_may_repeat(
    port: FakePort, path: str, stream: bool
) -> None:
    port.server.prompts = [[[aborted(0)]]]
    reply = await port.ask(path, **BODIES[path], stream=stream)

    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert reply.json()["error"]["type"] == "RequestEndedError"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("prompts", "n"),
    [
        ([[[aborted(0, tokens=2)]]], 1),
        ([[[aborted(0)], [aborted(1, tokens=1)]]], 2),
        ([[[aborted(0, tokens=1)], [aborted(1)]]], 2),
        ([[[aborted(0)]], ONE], 1),
    ],
    ids=["some tokens", "a later choice", "an earlier choice", "another prompt"],
)
async def test_a_reply_with_some_tokens_is_given_out_as_it_is(
    port: FakePort, prompts: Any, n: int, stream: bool
) -> None:
    if not stream:  # vLLM gives the last output of all choices then
        prompts = [[[choice for step in steps for choice in step]] for steps in prompts]
    port.server.prompts, port.server.n = prompts, n

    reply = await port.ask(stream=stream)
    assert reply.status_code == 200
    assert '"error"' not in reply.text


async def test_a_stream_whose_choices_all_end_without_tokens_ends_with_an_error(
    port: FakePort,
) -> None:
    port.server.prompts, port.server.n = [[[aborted(0)], [aborted(1)]]], 2
    reply = await port.ask(stream=True)

    *_, last, done = [line for line in reply.text.splitlines() if line]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 429
    assert done == "data: [DONE]"


OTHERS = itertools.product(
    ("0", "cmpl", "chatcmpl", "other", "cmpl-other", ""),
    ("cmpl-not-other-0", "chatcmpl-not-other_0", "other-not"),
    (429,),
)


@pytest.mark.parametrize(
    ("abort", "engine_id", "status"),
    [
        *OTHERS,
        ("mine", "cmpl-mine-0", 200),
        ("mine", "chatcmpl-mine", 200),
        ("mine", "generate-tokens-mine", 200),
        ("mine", "cmpl-mine2-0", 429),
        ("mine", "mine_1", 200),
    ],
)
async def test_a_reply_without_tokens_is_for_the_client_that_aborted_its_own_request(
    port: FakePort, abort: str, engine_id: str, status: int
) -> None:
    port.server.prompts = []
    await port.client.post(ABORT_ROUTE, json={"request_ids": [abort]})
    port.server.prompts, port.server.request_id = [[[aborted(0)]]], engine_id

    assert (await port.ask()).status_code == status


@pytest.mark.parametrize("abort", ["mine", "cmpl-mine", "cmpl-mine-0"])
async def test_an_abort_says_nothing_about_a_later_request_with_the_same_id(
    port: FakePort, abort: str
) -> None:
    port.server.prompts = []
    await port.client.post(ABORT_ROUTE, json={"request_ids": [abort]})
    port.server.prompts, port.server.request_id = [[[aborted(0)]]], "cmpl-mine-0"

    assert (await port.ask(request_id="mine")).status_code == 429
