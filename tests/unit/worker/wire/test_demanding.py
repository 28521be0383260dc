"""Demands on the weights, and keys of older weights, in replies."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from tests.support.fake_server import ONE, FakeChoice, FakePort, ended
from tests.support.waiting import soon
from tests.unit.worker.conftest import Bench

from fleet_worker.protocol import AdapterState

EXACT, MINIMUM = "x-weight-version-exact", "x-weight-version-min"
RUN = "x-weight-run"


def refusal_of(reply: httpx.Response) -> tuple[int, str | None, str | None, str]:
    headers, error = reply.headers, reply.json()["error"]
    return (
        reply.status_code,
        headers.get("retry-after"),
        headers.get("x-weight-version"),
        error["type"],
    )


@pytest.mark.parametrize("header", [{EXACT: "7"}, {MINIMUM: "7"}])
async def test_a_demand_that_is_not_met_is_refused_with_the_version_that_there_is(
    port: FakePort, header: dict[str, str]
) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask(headers=header)

    assert refusal_of(reply) == (409, "1", "base", "WeightVersionError")
    assert "base" in reply.json()["error"]["message"]
    assert port.server.asked == []


async def test_a_demand_that_is_met_changes_nothing(port: FakePort) -> None:
    port.server.prompts = [ONE]

    assert (await port.ask(headers={EXACT: "base"})).status_code == 200


async def test_a_demand_that_makes_no_sense_is_refused_for_good(port: FakePort) -> None:
    assert (await port.ask(headers={MINIMUM: "newest"})).status_code == 400


async def test_what_needs_no_weights_meets_every_demand(port: FakePort) -> None:
    assert (await port.client.get("/v1/models", headers={EXACT: "7"})).status_code == 200


async def swapped(
    port: FakePort, bench: Bench, headers: dict[str, str], **body: Any
) -> httpx.Response:
    """A request that comes under `base` and is held until version 1 is in the engine."""
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask(headers=headers, **body))
    await soon(lambda: bench.agent.quiescence.inside != 0)
    await bench.stage("1")
    await bench.pause()
    await bench.load("1")
    await bench.resume("1")
    port.server.hold.set()
    return await asking


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_that_is_held_over_a_swap_gets_no_tokens_of_other_weights(
    port: FakePort,
    serving: Bench,
    stream: bool,  # noqa: FBT001 - a parameter of the table
) -> None:
    port.server.prompts = [[[FakeChoice(0)], [ended(0, ("1", 0, 2))]]]
    reply = await swapped(port, serving, {EXACT: "base"}, stream=stream)

    assert refusal_of(reply) == (409, "1", "1", "WeightVersionError")


async def test_a_stream_that_goes_on_with_other_weights_ends_with_an_error(
    port: FakePort, serving: Bench
) -> None:
    async def swap() -> None:
        await serving.stage("1")
        await serving.pause()
        await serving.load("1")
        await serving.resume("1")

    steps: Any = [[FakeChoice(0)], swap, [FakeChoice(0)], [ended(0, ("base", 0, 1), ("1", 1, 2))]]
    port.server.prompts = [steps]
    reply = await port.ask(headers={EXACT: "base"}, stream=True)

    *_, last, done = [line for line in reply.text.splitlines() if line]
    assert reply.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 409
    assert done == "data: [DONE]"
    assert reply.text.count('"choices"') == 1, "only what the demanded weights made goes out"
    assert port.server.closed == 1, "vLLM was told to stop"


async def test_tokens_that_nobody_labelled_meet_no_demand(port: FakePort) -> None:
    port.server.prompts = [[[FakeChoice(0, "length", None)]]]

    assert (await port.ask(headers={EXACT: "base"})).status_code == 409


@pytest.mark.parametrize("path", ["/v1/completions", "/inference/v1/generate"])
@pytest.mark.parametrize(("cached", "kv_from"), [(0, None), (1, "0")])
async def test_tokens_say_when_they_may_have_read_keys_of_older_weights(
    port: FakePort, serving: Bench, path: str, cached: int, kv_from: str | None
) -> None:
    agent = serving.agent
    agent.kept.loaded(agent.label_of(agent.good), f"0@{'1' * 12}", cleared=False)
    port.server.prompts, port.server.cached = [ONE], cached
    tokens = {"token_ids": [1], "sampling_params": {}}
    reply = await port.ask(path, **({} if path == "/v1/completions" else tokens))

    (choice,) = reply.json()["choices"]
    (span,) = choice["weight_versions"]
    assert span.get("kv_from") == kv_from
    assert span.get("kv_from_digest") == (kv_from and "1" * 12)


@pytest.mark.parametrize(("demanded", "status"), [("7", 200), ("base", 409)])
async def test_a_demand_on_a_request_for_an_adapter_means_the_adapters_version(
    port: FakePort, monkeypatch: pytest.MonkeyPatch, demanded: str, status: int
) -> None:
    served = AdapterState(name="style", version="7", digest="sha256:" + "3" * 64)
    monkeypatch.setattr(port.agent.adapters, "states", lambda: (served,))
    port.server.prompts, port.server.adapter = [ONE], f"style@7@{'3' * 12}"

    reply = await port.ask(headers={EXACT: demanded}, model="style")
    assert reply.status_code == status
    stream = await port.ask(headers={EXACT: demanded}, model="style", stream=True)
    assert stream.status_code == status


@pytest.mark.parametrize(("demanded", "status"), [("run-8", 200), ("run-7", 409)])
async def test_a_demand_for_a_run_on_a_request_for_an_adapter_means_the_adapters_run(
    port: FakePort, monkeypatch: pytest.MonkeyPatch, demanded: str, status: int
) -> None:
    digest = "sha256:" + "3" * 64
    served = AdapterState(name="style", version="7", run_id="run-8", digest=digest)
    monkeypatch.setattr(port.agent.adapters, "states", lambda: (served,))
    port.server.prompts, port.server.adapter = [ONE], f"style@7@{'3' * 12}@run-8"
    reply = await port.ask(headers={RUN: demanded}, model="style")

    assert reply.status_code == status
    if status == 200:
        ((span,),) = (choice["weight_versions"] for choice in reply.json()["choices"])
        assert (span["adapter"], span["adapter_run_id"]) == ("7", "run-8")
