"""Requests that demand certain weights, through the public port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.fake_server import ONE, FakeChoice, FakePort, ended
from tests.support.lora_harness import LoraHarness
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, WorkerHarness

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
async def test_an_unmet_demand_is_refused_with_the_present_version(
    port: FakePort, header: dict[str, str]
) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask(headers=header)

    assert refusal_of(reply) == (409, "1", "base", "WeightVersionError")
    assert "base" in reply.json()["error"]["message"]
    assert reply.headers["connection"] == "close", "the next try reaches another worker"
    assert port.server.asked == []


IN_BODY = {EXACT: "weight_version_exact", MINIMUM: "weight_version_min", RUN: "weight_run"}


@pytest.mark.parametrize("name", [EXACT, MINIMUM])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions/tokens"])
async def test_a_demand_in_the_body_means_the_same_as_its_header(
    port: FakePort, name: str, path: str
) -> None:
    """Routers drop headers on routes that they do not know."""
    reply = await port.ask(path, model="policy", **{IN_BODY[name]: 7})

    assert refusal_of(reply) == (409, "1", "base", "WeightVersionError")
    assert port.server.asked == []


async def test_vllm_gets_the_body_without_its_demand(port: FakePort) -> None:
    port.server.prompts = [ONE]
    reply = await port.ask(model="policy", prompt="ü", weight_version_exact="base")

    assert reply.status_code == 200
    assert port.server.asked == [("/v1/completions", {"model": "policy", "prompt": "ü"})]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({"weight_version_min": "newest"}, id="a label without order"),
        pytest.param({"weight_version_min": True}, id="no version"),
        pytest.param({"weight_version_exact": ""}, id="an empty one"),
        pytest.param({"weight_version_exact": "8"}, id="another one than the header"),
    ],
)
async def test_an_invalid_demand_in_the_body_is_final(port: FakePort, body: dict[str, Any]) -> None:
    reply = await port.ask(headers={EXACT: "base"}, **body)

    assert reply.status_code == 400


@pytest.mark.parametrize(
    "headers",
    [
        [(EXACT, "base"), (EXACT, "7")],
        [(EXACT, "7"), (EXACT, "base")],
        [(RUN, "r"), (RUN, "s")],
        [("x-weight-version", "base")],
        [("x-weight-version-minimum", "0")],
        [("x-weight-run-id", "r")],
        [("x-weight-digest", "1" * 12)],
        [("x-weight_version_exact", "base")],
    ],
    ids=str,
)
async def test_a_header_that_would_not_count_is_refused(
    port: FakePort, headers: list[tuple[str, str]]
) -> None:
    reply = await port.client.post("/v1/completions", json={"model": "policy"}, headers=headers)

    assert (reply.status_code, port.server.asked) == (400, [])


async def test_a_header_that_comes_twice_with_one_value_counts(port: FakePort) -> None:
    headers = [(EXACT, "7"), (EXACT, "7")]
    reply = await port.client.post("/v1/completions", json={"model": "policy"}, headers=headers)

    assert reply.status_code == 409


@pytest.mark.parametrize(
    "name",
    ["weight_version", "weight_version_minimum", "weight_run_id", "Weight_run", "weightVersionMin"],
)
async def test_a_field_that_would_not_count_is_refused(port: FakePort, name: str) -> None:
    reply = await port.ask(**{name: "base"})

    assert (reply.status_code, port.server.asked) == (400, [])


@pytest.mark.parametrize(
    "body",
    [
        rb'{"model": "policy", "weight\u005fversion_exact": "7"}',
        rb'{"model": "policy", "\u0077eight_version_exact": "7"}',
        '{"model": "policy", "weight_version_exact": "7"}'.encode("utf-16"),
        '{"model": "policy", "weight_version_exact": "7"}'.encode("utf-32-be"),
        '\ufeff{"model": "policy", "weight_version_exact": "7"}'.encode(),
    ],
    ids=str,
)
async def test_a_demand_counts_however_its_json_is_written(port: FakePort, body: bytes) -> None:
    reply = await port.client.post("/v1/completions", content=body)

    assert refusal_of(reply) == (409, "1", "base", "WeightVersionError")


async def test_a_weight_inside_of_a_tool_demands_nothing(port: FakePort) -> None:
    port.server.prompts = [ONE]
    tools = [{"function": {"parameters": {"properties": {"weight": {}, "weight_kg": {}}}}}]

    assert (await port.ask(tools=tools)).status_code == 200


async def test_demands_of_header_and_body_hold_together(port: FakePort) -> None:
    reply = await port.ask(headers={EXACT: "base"}, weight_run="run-8")

    assert reply.status_code == 409


async def test_a_request_that_needs_no_weights_meets_every_demand(port: FakePort) -> None:
    assert (await port.client.get("/v1/models", headers={EXACT: "7"})).status_code == 200


async def test_a_stream_that_continues_on_other_weights_ends_with_an_error(
    port: FakePort, serving: WorkerHarness
) -> None:
    swap = partial(serving.swap, "1")
    steps: Any = [[FakeChoice(0)], swap, [FakeChoice(0)], [ended(0, ("base", 0, 1), ("1", 1, 2))]]
    port.server.prompts = [steps]
    reply = await port.ask(headers={EXACT: "base"}, stream=True)

    *_, last, done = [line for line in reply.text.splitlines() if line]
    assert reply.status_code == 200
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == 409
    assert done == "data: [DONE]"
    assert reply.text.count('"choices"') == 1, "only what the demanded weights made goes out"
    assert port.server.closed == 1, "the request of vLLM was closed"


async def test_unlabelled_tokens_meet_no_demand(port: FakePort) -> None:
    port.server.prompts = [[[FakeChoice(0, "length", None)]]]

    assert (await port.ask(headers={EXACT: "base"})).status_code == 409


@pytest.mark.parametrize("path", ["/v1/completions", "/inference/v1/generate"])
@pytest.mark.parametrize(("cached", "kv_from"), [(0, None), (1, "0")])
async def test_tokens_name_older_weights_whose_keys_they_may_have_read(
    port: FakePort, serving: WorkerHarness, path: str, cached: int, kv_from: str | None
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


class ImagePrompt(list[Any]):
    """A prompt with an image, in the form of the fake engine."""

    mm_features = ("an image",)


async def test_a_request_with_an_image_names_older_weights_without_a_cached_prefix(
    port: FakePort, serving: WorkerHarness
) -> None:
    agent = serving.agent
    agent.kept.loaded(agent.label_of(agent.good), f"0@{'1' * 12}", cleared=False)
    port.server.prompts = [ImagePrompt(ONE)]

    (choice,) = (await port.ask()).json()["choices"]
    (span,) = choice["weight_versions"]
    assert span["kv_from"] == "0"


# --- adapters ------------------------------------------------------------------------------------


@pytest.fixture
def lora(
    serving: WorkerHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoraHarness]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield LoraHarness(serving)
    serving.agent.adapters.close()


def engine_names(lora: LoraHarness) -> list[str]:
    """The engine's names of the loaded adapters, the newest last."""
    return [each.name for each in lora.harness.agent.adapters.in_engine()]


@pytest.mark.parametrize(("demanded", "status"), [("7", 200), ("base", 409)])
async def test_a_demand_on_an_adapter_request_means_the_adapters_version(
    port: FakePort, lora: LoraHarness, demanded: str, status: int
) -> None:
    await lora.put("7", lora.write("7"))
    port.server.prompts, port.server.adapter = [ONE], engine_names(lora)[0]

    reply = await port.ask(headers={EXACT: demanded}, model="tuned")
    assert reply.status_code == status
    stream = await port.ask(headers={EXACT: demanded}, model="tuned", stream=True)
    assert stream.status_code == status


@pytest.mark.parametrize(("demanded", "status"), [("run-8", 200), ("run-7", 409)])
async def test_a_demand_for_a_run_on_an_adapter_request_means_the_adapters_run(
    port: FakePort, lora: LoraHarness, demanded: str, status: int
) -> None:
    await lora.put("7", lora.write("7"), run_id="run-8")
    port.server.prompts, port.server.adapter = [ONE], engine_names(lora)[0]
    reply = await port.ask(headers={RUN: demanded}, model="tuned")

    assert reply.status_code == status
    if status == 200:
        ((span,),) = (choice["weight_versions"] for choice in reply.json()["choices"])
        assert (span["adapter"], span["adapter_run_id"]) == ("7", "run-8")


async def test_a_demand_on_an_adapter_that_is_only_staged_is_unmet(
    port: FakePort, lora: LoraHarness
) -> None:
    await lora.put("7", lora.write("7"), stage_only=True)

    assert (await port.ask(headers={EXACT: "base"}, model="tuned")).status_code == 409


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("folder", "status"), [("run-7/step_4", 200), ("run-8/step_4", 409)])
async def test_a_minimum_compares_no_numbers_of_adapters_of_two_directories(
    serving: WorkerHarness, lora: LoraHarness, folder: str, status: int, stream: bool
) -> None:
    """A request that came under one adapter gets the one that is served when it reaches the engine."""
    port = FakePort(serving.agent, names_no_runs=True)
    files = TrainerHarness.of(serving).files
    await files.put_adapter(HOLDER, "tuned", str(lora.write("run-7/step_3")))
    port.server.hold, port.server.prompts = asyncio.Event(), [ONE]
    headers = {MINIMUM: "3"}
    asking = asyncio.create_task(port.ask(headers=headers, model="tuned", stream=stream))
    await soon(lambda: serving.agent.quiescence.inside != 0)
    await files.put_adapter(HOLDER, "tuned", str(lora.write(folder, seed=2)))
    port.server.adapter = engine_names(lora)[-1]
    port.server.hold.set()
    reply = await asking
    await port.client.aclose()

    assert reply.status_code == status, reply.text
