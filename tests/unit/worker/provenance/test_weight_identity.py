"""Replies name the weights that made them: version, run and digest, never the engine's label."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import touched
from tests.support.fake_server import FakeChoice, FakePort, ended
from tests.support.tiny import write_tiny
from tests.support.waiting import soon
from tests.support.worker_harness import HOLDER, TrainerHarness, WorkerHarness, failing, refused

from fleet_worker.checkpoint.identity import short_digest
from fleet_worker.protocol import TOKEN_ROUTE, PauseMode, PauseRequest, Reason

LABEL = re.compile(rb"[A-Za-z0-9._-]+@(?:[0-9a-f]{12}|transfer)")
"""As the engine has them."""
RUNS = ("run-7", "run-8")
BODY: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": []},
    "/v1/chat/completions/batch": {"messages": []},
    "/v1/chat/completions/tokens": {"messages": [], "tokens": [1]},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": []},
    TOKEN_ROUTE: {"token_ids": [1], "sampling_params": {}},
}


def step_40(harness: WorkerHarness, run_id: str | None) -> Path:
    value = RUNS.index(run_id) + 1.0 if run_id is not None else 9.0
    return write_tiny(harness.root / (run_id or "no-run") / "step_40", value)


async def swap(harness: WorkerHarness, run_id: str | None, *, keep_cache: bool = False) -> str:
    """Bring version 40 of a run; returns the first digits of its digest."""
    named = {"run_id": run_id} if run_id is not None else {}
    await harness.stage("40", step_40(harness, run_id), **named)
    pause = PauseRequest(mode=PauseMode.KEEP, lease_seconds=30, epoch=harness.epoch())
    await harness.agent.pause(pause, keep_cache=keep_cache)
    await harness.load("40", **named)
    await harness.resume("40", **named)
    return short_digest(harness.state.digest or "")


async def over_two_runs(
    port: FakePort, harness: WorkerHarness, path: str = "/v1/completions", **body: Any
) -> tuple[httpx.Response, list[str]]:
    """A reply whose first token run-7/40 made, and the rest run-8/40."""
    digests = [await swap(harness, "run-7")]
    labels = [harness.engine.raw_label]

    async def to_the_next_run() -> None:
        digests.append(await swap(harness, "run-8"))
        labels.append(harness.engine.raw_label)
        spans = ((labels[0], 0, 1), (labels[1], 1, 3))
        steps[-1] = [ended(0, *spans)]

    steps: Any = [[FakeChoice(0)], to_the_next_run, []]
    port.server.prompts = [steps]
    reply = await port.ask(path, **BODY[path], **body)
    return reply, digests


def spans_in(reply: httpx.Response) -> Any:
    contents = [reply.json()] if not reply.text.startswith("data:") else []
    lines = [line for line in reply.text.splitlines() if line.startswith("data: {")]
    contents += [json.loads(line.removeprefix("data: ")) for line in lines]
    places = [c for content in contents for c in (content, *content.get("choices", ()))]
    (found,) = [place["weight_versions"] for place in places if "weight_versions" in place]
    return found


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", ["/v1/completions", TOKEN_ROUTE])
async def test_a_request_over_two_runs_with_the_same_number_has_two_spans(
    port: FakePort, serving: WorkerHarness, path: str, stream: bool
) -> None:
    reply, digests = await over_two_runs(port, serving, path, stream=stream)

    assert spans_in(reply) == [
        {"version": "40", "start": 0, "end": 1, "run_id": "run-7", "digest": digests[0]},
        {"version": "40", "start": 1, "end": 3, "run_id": "run-8", "digest": digests[1]},
    ]
    assert reply.headers["x-weight-version-start"] == "40"
    assert reply.headers["x-weight-run-start"] == "run-7"
    assert reply.headers["x-weight-digest-start"] == digests[0]
    if not stream:
        assert reply.headers["x-weight-version-end"] == "40"
        assert reply.headers["x-weight-run-end"] == "run-8"
        assert reply.headers["x-weight-digest-end"] == digests[1]
    assert port.unlabelled() == 0


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", BODY)
async def test_no_label_of_the_engine_is_in_a_reply_of_any_data_route(
    port: FakePort, serving: WorkerHarness, path: str, stream: bool
) -> None:
    reply, _ = await over_two_runs(port, serving, path, stream=stream)

    assert reply.status_code in (200, 500), "or the fake's reply has too little for this api"
    assert not LABEL.search(reply.content)
    assert not any(LABEL.search(value) for _, value in reply.headers.raw)


async def test_no_label_of_the_engine_is_in_a_reply_of_the_token_route(
    port: FakePort, serving: WorkerHarness
) -> None:
    """The spans are written over where vLLM writes them otherwise, too."""
    await swap(serving, "run-7")
    label = serving.engine.raw_label
    port.server.prompts = [[[ended(0, (label, 0, 2))]]]
    span = {"end": 2, "start": 0, "version": "40"}
    port.server.reply = {"choices": [{"index": 0, "weight_versions": [span]}]}
    reply = await port.ask(TOKEN_ROUTE, **BODY[TOKEN_ROUTE])

    (found,) = reply.json()["choices"][0]["weight_versions"]
    assert found == {"version": "40", "start": 0, "end": 2} | {
        "run_id": "run-7",
        "digest": short_digest(serving.state.digest or ""),
    }


ASKED = [
    ("GET", "/v1/worker/state"),
    ("GET", "/weight_info"),
    ("GET", "/server_info"),
    ("GET", "/server_info?config_format=json"),
    ("GET", "/v1/models"),
    ("GET", "/health"),
    ("GET", "/metrics"),
    ("POST", "/engine/get_weight_version"),
    ("POST", "/engine/control/get_weight_version"),
    ("POST", "/engine/control/is_paused"),
]


@pytest.mark.parametrize(("method", "path"), ASKED)
async def test_no_label_of_the_engine_is_in_an_answer_of_the_admin_port(
    trainer_port: TrainerPort, method: str, path: str
) -> None:
    await swap(trainer_port.harness, "run-7")
    assert LABEL.fullmatch(trainer_port.harness.engine.raw_label.encode())
    body = {} if method == "POST" else None
    reply = await trainer_port.client.request(method, path, json=body)

    assert reply.status_code == 200, reply.text
    assert not LABEL.search(reply.content)
    if "weight" in path:
        assert "40" in (reply.json().get("weight_version"), reply.json().get("version"))


async def test_every_dialect_answers_trainers_with_plain_versions(
    trainer_port: TrainerPort,
) -> None:
    """Exactly: some compare the whole answer with what they expect."""
    path = trainer_port.step(5)
    assert (await trainer_port.post("/pause"))[0] == 200
    assert await trainer_port.post("/update_weights", weight_dir=path) == (
        200,
        {"status": "ok", "weight_version": "5"},
    )
    named = await trainer_port.post("/engine/update/update_weight_version", new_version="6")
    assert (named[0], named[1]["version"]) == (200, "6")
    version = await trainer_port.post("/engine/control/get_weight_version")
    assert version == (200, {"weight_version": "6"})
    assert await trainer_port.get("/weight_info") == (200, {"weight_version": "6"})


async def test_no_label_of_the_engine_is_in_an_error(trainer_port: TrainerPort) -> None:
    harness = trainer_port.harness
    await harness.stage("40", step_40(harness, "run-7"), run_id="run-7")
    await harness.pause()
    harness.engine.failures["set_version"] = [touched(Reason.ENGINE_FAILED)]
    await failing(harness.load("40"))
    for call in (harness.load("41"), harness.admit("41"), harness.load("40", run_id="run-9")):
        assert not LABEL.search((await refused(call)).message.encode())
    state = await trainer_port.client.get("/v1/worker/state")

    assert state.json()["load_failure"]["run_id"] == "run-7"
    assert not LABEL.search(state.content)


# --- demands -------------------------------------------------------------------------------------


async def held_over(
    port: FakePort,
    harness: WorkerHarness,
    swaps: Awaitable[object],
    headers: dict[str, str],
    **body: Any,
) -> httpx.Response:
    """A request that is held until other weights are in the engine."""
    port.server.hold = asyncio.Event()
    asking = asyncio.create_task(port.ask(headers=headers, **body))
    await soon(lambda: harness.agent.quiescence.inside != 0)
    await swaps
    port.server.prompts = [[[FakeChoice(0)], [ended(0, (harness.engine.raw_label, 0, 2))]]]
    port.server.hold.set()
    return await asking


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("demand", "status"),
    [
        ({"x-weight-version-min": "3"}, 409),
        ({"x-weight-version-exact": "40"}, 409),
        ({"x-weight-run": "run-7"}, 409),
        ({}, 200),
    ],
    ids=str,
)
async def test_a_request_accepted_for_one_run_gets_no_tokens_of_the_next(
    port: FakePort, serving: WorkerHarness, demand: dict[str, str], status: int, stream: bool
) -> None:
    await swap(serving, "run-7")
    reply = await held_over(port, serving, swap(serving, "run-8"), demand, stream=stream)

    assert reply.status_code == status
    if status == 409:
        assert "run-8" in reply.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(("first", "then"), [(None, "run-8"), ("run-8", None)])
async def test_a_minimum_compares_no_numbers_of_a_run_and_of_weights_without_a_run(
    port: FakePort, serving: WorkerHarness, first: str | None, then: str | None, stream: bool
) -> None:
    await swap(serving, first)
    demand = {"x-weight-version-min": "3"}
    reply = await held_over(port, serving, swap(serving, then), demand, stream=stream)

    assert reply.status_code == 409
    assert reply.headers["x-weight-version"] == "40"


@pytest.fixture
async def external(serving: WorkerHarness) -> AsyncIterator[FakePort]:
    """The public port of a worker of an External fleet."""
    made = FakePort(serving.agent, names_no_runs=True)
    yield made
    await made.client.aclose()


def step_of_run(harness: WorkerHarness, run: str, step: int) -> str:
    return str(write_tiny(harness.root / run / f"step_{step}", RUNS.index(run) + step / 8))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("run", "step", "status"),
    [("run-7", 41, 200), ("run-7", 2, 409), ("run-8", 41, 409), ("run-8", 40, 409)],
)
async def test_a_minimum_compares_no_numbers_of_two_directories_of_a_trainer(
    external: FakePort, trainer: TrainerHarness, run: str, step: int, status: int, stream: bool
) -> None:
    files, harness = trainer.files, trainer.harness
    await files.load(HOLDER, step_of_run(harness, "run-7", 40))
    swaps = files.load(HOLDER, step_of_run(harness, run, step))
    demand = {"x-weight-version-min": "3"}
    reply = await held_over(external, harness, swaps, demand, stream=stream)

    assert reply.status_code == status, reply.text
    if status == 409:
        assert reply.headers["x-weight-version"] == str(step)


async def test_a_minimum_is_compared_across_directories_in_a_fleet_whose_versions_have_no_run(
    port: FakePort, serving: WorkerHarness
) -> None:
    """There a WeightVersion names the run, and without one all belong together."""

    async def to_41() -> None:
        await serving.stage("41", Path(step_of_run(serving, "run-8", 41)))
        await serving.apply("41")

    await swap(serving, None)
    reply = await held_over(port, serving, to_41(), {"x-weight-version-min": "3"})

    assert reply.status_code == 200


@pytest.mark.parametrize(
    ("demand", "status"),
    [
        ({"x-weight-run": "run-7", "x-weight-version-min": "3"}, 200),
        ({"x-weight-run": "run-7", "x-weight-version-exact": "40"}, 200),
        ({"x-weight-run": "run-7"}, 200),
        ({"x-weight-run": "run-8", "x-weight-version-min": "3"}, 409),
        ({"x-weight-run": "run-8", "x-weight-version-exact": "40"}, 409),
        ({"x-weight-run": "run-8"}, 409),
        ({"x-weight-run": " "}, 400),
    ],
    ids=str,
)
async def test_a_demand_for_a_run_is_met_by_that_run_only(
    port: FakePort, serving: WorkerHarness, demand: dict[str, str], status: int
) -> None:
    await swap(serving, "run-7")
    port.server.prompts = [[[ended(0, ("40", 0, 2))]]]
    reply = await port.ask(headers=demand)

    assert reply.status_code == status
    if status == 409:
        assert reply.headers["x-weight-version"] == "40"
        assert "run-7" in reply.json()["error"]["message"]


async def test_keys_kept_over_a_new_run_name_their_run(
    port: FakePort, serving: WorkerHarness
) -> None:
    digest = await swap(serving, "run-7")
    await swap(serving, "run-8", keep_cache=True)
    label = serving.engine.raw_label
    port.server.prompts, port.server.cached = [[[ended(0, (label, 0, 2))]]], 1
    (span,) = spans_in(await port.ask())

    assert (span["version"], span["run_id"]) == ("40", "run-8")
    assert (span["kv_from"], span["kv_from_run_id"], span["kv_from_digest"]) == (
        "40",
        "run-7",
        digest,
    )


async def test_an_adapters_version_and_digest_are_reported(port: FakePort) -> None:
    port.server.prompts, port.server.adapter = (
        [[[ended(0, ("base", 0, 2))]]],
        "style@7@3fa9c1d04b2e",
    )
    (span,) = spans_in(await port.ask())

    assert (span["version"], span["adapter"]) == ("base", "7")
    assert span["adapter_digest"] == "3fa9c1d04b2e"
