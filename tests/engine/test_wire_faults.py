"""Replies of the engine that the test changes before the worker reads them.

Damaged replies: the worker sends no part of them. Routed experts: vLLM's build for CPUs reports
none, so the test adds them as an engine on a GPU would.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from tests.engine.test_wire_tokens import CHAT, GENERATE, PLACEHOLDER, PROMPT, ask
from tests.support.fake_server import fake_facts
from tests.support.npy import npy
from tests.support.worker import WorkerProcess

from fleet_worker.checkpoint.identity import WeightName, WeightNames
from fleet_worker.engine.records import weight_name_of
from fleet_worker.gateway.gate import Gate, GateKeeper, PublicKey
from fleet_worker.gateway.table import Translations
from fleet_worker.http.asgi import Receive, Scope, Send, answer_json, read_body
from fleet_worker.lifecycle.freshness import Freshness
from fleet_worker.lifecycle.holding import Holding
from fleet_worker.lifecycle.kept_cache import KeptCache
from fleet_worker.provenance.spans import compact

Json = dict[str, Any]
Damage = Callable[[Json], object]


async def through_a_line(
    worker: WorkerProcess, damage: Damage, body: Json, path: str = CHAT
) -> tuple[int, bytes]:
    """A request through our gate, whose server is the real worker on a line that changes replies."""

    async def line(scope: Scope, receive: Receive, send: Send) -> None:
        sent = json.loads(await read_body(receive, limit=10**6))
        async with httpx.AsyncClient(base_url=str(worker.public.base_url), timeout=60) as client:
            reply = (await client.post(scope["path"], json=sent)).json()
        damage(reply)
        await answer_json(send, 200, compact(reply))  # as vLLM writes it

    agent = SimpleNamespace(
        is_open=True,
        holds=False,
        held=Holding(),
        version="1",
        kept=KeptCache(),
        names=WeightNames(),
        name=WeightName("1"),
        adapters=SimpleNamespace(weights_of=weight_name_of),
        quiescence=SimpleNamespace(inside=0),
        freshness=Freshness(time.monotonic),
    )
    counter = SimpleNamespace(inc=lambda: None)
    nobody: Any = SimpleNamespace(unlabelled=counter, made=lambda *_: None)
    facts = fake_facts(max_length=4096, id_limit=512, routes_experts=True)
    keeper = GateKeeper(agent, nobody, nobody, Translations(facts), PublicKey())
    gate = Gate(line)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = SimpleNamespace(state=SimpleNamespace(rlfleet=keeper))
        await gate(scope, receive, send)

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gate") as client:
        answer = await client.post(path, json=body)
    return answer.status_code, answer.content


def _choice(reply: Json) -> Json:
    choice: Json = reply["choices"][0]
    return choice


EXPERTS = [
    pytest.param(
        GENERATE,
        {"token_ids": PROMPT, "sampling_params": {"max_tokens": 3, "logprobs": 0}},
        0,
        id="all of the sequence",
    ),
    pytest.param(
        GENERATE,
        {
            "token_ids": PROMPT,
            "sampling_params": {"max_tokens": 3, "routed_experts_prompt_start": 2},
        },
        2,
        id="from a start on",
    ),
    pytest.param(
        GENERATE,
        {
            "token_ids": PROMPT,
            "sampling_params": {"max_tokens": 3},
            "routed_experts_prompt_start": 3,
        },
        3,
        id="from a start outside of the sampling parameters",
    ),
    pytest.param(
        CHAT,
        {
            "messages": PLACEHOLDER,
            "nvext": {"token_data": PROMPT, "routed_experts_prompt_start": 1},
            "max_tokens": 3,
        },
        1,
        id="nvext",
    ),
    pytest.param(
        CHAT,
        {"messages": PLACEHOLDER, "max_tokens": 3, "routed_experts_prompt_start": 4},
        4,
        id="a chat",
    ),
]


@pytest.mark.parametrize(("path", "body", "start"), EXPERTS)
async def test_routed_experts_come_as_clients_read_them(
    worker: WorkerProcess, home: str, path: str, body: Json, start: int
) -> None:
    rows = bytes(range(6 * 2 * 2))

    def route(reply: Json) -> None:
        """vLLM's addition with --enable-return-routed-experts: a .npy file of tokens - 1 rows."""
        _choice(reply)["routed_experts"] = npy("|u1", (6, 2, 2), rows)

    status, content = await through_a_line(worker, route, {"model": "policy", **body}, path)

    assert status == 200, content
    # As renderers and verifiers take it out, without parsing the rest.
    begin = content.index(b'"routed_experts":{"data":"') + len(b'"routed_experts":{"data":"')
    end = content.index(b'"', begin)
    assert base64.b64decode(content[begin:end]) == rows
    experts = _choice(json.loads(content))["routed_experts"]
    assert (experts["shape"], experts["start"], experts["dtype"]) == ([6, 2, 2], start, "uint8")


def test_the_engine_trims_experts_as_the_client_requests(worker: WorkerProcess, home: str) -> None:
    def code(start: int) -> int:
        sampling = {"max_tokens": 1, "routed_experts_prompt_start": start}
        return ask(worker, GENERATE, token_ids=PROMPT, sampling_params=sampling).status_code

    assert code(len(PROMPT)) == 200
    assert code(len(PROMPT) + 1) == 400, "the engine has looked at it"
