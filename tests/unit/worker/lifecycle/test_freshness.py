"""A worker knows the age of its weights, and refuses requests for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.fake_server import ONE, FakePort
from tests.support.refusals import refusal_from
from tests.support.waiting import soon
from tests.support.worker_harness import WorkerHarness, refused

from fleet_worker.protocol import Epoch, Reason, Wanted, WantedRequest


def wanted(*versions: tuple[str, float], term: int = 1, **limits: Any) -> WantedRequest:
    named = tuple(Wanted(version=version, seconds=seconds) for version, seconds in versions)
    return WantedRequest(wanted=named, term=term, **limits)


async def status(port: FakePort) -> int:
    port.server.prompts = [ONE]
    return (await port.ask()).status_code


@pytest.mark.parametrize(
    ("versions", "limits", "expected"),
    [
        ([("base", 500.0)], {"max_seconds": 60, "max_versions": 0}, 200),
        ([("9", 10.0), ("base", 500.0)], {"max_seconds": 60}, 200),
        ([("9", 70.0), ("base", 500.0)], {"max_seconds": 60}, 429),
        ([("9", 1.0), ("base", 500.0)], {"max_seconds": 60, "max_versions": 0}, 429),
        ([("9", 1.0)], {"max_seconds": 60, "complete": False}, 429),
        ([("9", 70.0), ("base", 500.0)], {}, 200),
        ([], {"max_seconds": 60}, 200),
    ],
)
async def test_a_request_is_refused_if_the_weights_lag_more_than_permitted(
    port: FakePort,
    serving: WorkerHarness,
    versions: list[tuple[str, float]],
    limits: dict[str, Any],
    expected: int,
) -> None:
    await serving.agent.hear(wanted(*versions, **limits))

    assert await status(port) == expected
    assert port.counted("stale_requests") == (expected == 429)


async def test_the_refusal_is_named_and_asks_for_another_try_at_another_worker(
    port: FakePort, serving: WorkerHarness
) -> None:
    await serving.agent.hear(wanted(("9", 70.0), ("base", 500.0), max_seconds=60))
    reply = await port.ask()

    assert reply.json()["error"]["type"] == "StaleWeightsError"
    assert reply.headers["retry-after"] == "1"
    assert reply.headers["connection"] == "close"


async def test_a_worker_that_hears_nothing_for_the_permitted_time_is_not_fresh(
    port: FakePort, serving: WorkerHarness
) -> None:
    await serving.agent.hear(wanted(("base", 5.0), max_seconds=60))
    serving.clock.advance(59)
    assert await status(port) == 200
    serving.clock.advance(2)
    assert await status(port) == 429
    await serving.agent.hear(wanted(("base", 66.0), max_seconds=60))
    assert await status(port) == 200


async def test_a_running_stream_is_not_cut(port: FakePort, serving: WorkerHarness) -> None:
    port.server.prompts = [ONE]
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask(stream=True))
    await soon(lambda: serving.agent.quiescence.inside != 0)
    await serving.agent.hear(wanted(("9", 70.0), ("base", 500.0), max_seconds=60))
    port.server.hold.set()

    assert (await asking).text.endswith("data: [DONE]\n\n")


async def test_a_request_that_waits_for_a_load_is_judged_by_the_new_weights(
    port: FakePort, serving: WorkerHarness
) -> None:
    port.server.prompts = [ONE]
    await serving.agent.hear(wanted(("1", 70.0), ("base", 500.0), max_seconds=60))
    await serving.staged_in_a_pause("1")
    asking = asyncio.create_task(port.ask())
    await soon(lambda: serving.agent.held.count == 1)
    await serving.load("1")
    await serving.resume("1")

    assert (await asking).status_code == 200
    assert port.counted("held_requests") == 1


async def test_an_earlier_leader_does_not_make_weights_fresh(
    port: FakePort, serving: WorkerHarness
) -> None:
    await serving.agent.hear(wanted(("9", 70.0), ("base", 500.0), term=3, max_seconds=60))
    refusal = await refused(serving.agent.hear(wanted(("base", 0.0), term=2, max_seconds=60)))
    assert refusal.reason is Reason.STALE_EPOCH
    assert await status(port) == 429


async def test_a_named_version_makes_only_calls_of_earlier_leaders_outdated(
    serving: WorkerHarness,
) -> None:
    before = serving.agent.epoch
    assert before is not None
    await serving.agent.hear(wanted(("base", 0.0), term=before.term))
    assert serving.agent.epoch == before
    await serving.agent.hear(wanted(("base", 0.0), term=9))
    serving.agent.obey(Epoch(term=9, sequence=0))
    refusal_from(serving.agent.obey, before)


@pytest.mark.parametrize(
    ("versions", "lag"),
    [
        ([], "unknown"),
        ([("base", 1.0)], "0"),
        ([("9", 1.0), ("base", 2.0)], "1"),
        ([(str(n), 1.0) for n in range(9)], "4+"),
    ],
)
async def test_tokens_are_counted_by_the_lag_of_their_weights(
    port: FakePort, serving: WorkerHarness, versions: list[tuple[str, float]], lag: str
) -> None:
    await serving.agent.hear(wanted(*versions))
    await status(port)
    counted = port.metrics.registry.get_sample_value("rlfleet_worker_tokens_total", {"lag": lag})

    assert counted == 2


@pytest.mark.parametrize(
    ("request_", "limits"),
    [
        (wanted(), None),
        (wanted(("base", 0.0)), False),
        (wanted(("base", 0.0), max_seconds=60), True),
    ],
)
async def test_the_state_says_whether_the_worker_refuses_by_lag(
    serving: WorkerHarness, request_: WantedRequest, limits: object
) -> None:
    await serving.agent.hear(request_)

    assert serving.state.limits_lag is limits
