"""HTTP clients of trainers, as released, at the one address of a fleet: TRL's two, SkyRL's, vLLM's.

Fake are the API server, the engines of three workers, and the replies to rollouts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from tests.support.admin_servers import TOKEN, AdminServer, admin_servers
from tests.support.fake_cluster import FLEET_UID, FakeCluster, pod
from tests.support.fake_engine import touched
from tests.support.released_clients import ReleasedClients
from tests.support.tiny import write_tiny

from fleet_api.lifecycle import Lifecycle
from fleet_api.main import build
from fleet_api.metrics import Metrics
from fleet_api.settings import parse_settings
from fleet_worker.engine.vllm_facts import described
from fleet_worker.protocol import Phase
from fleet_worker.trainer.transfers import TransferRoom

KEY = "a-key-of-the-trainers"
MODEL = "qwen"
NUMBER = 3
GROUP_SIZE = NUMBER + 1
SECRET = "/api/v1/namespaces/rl/secrets/policy-admin-token"
VLLM_CONFIG = SimpleNamespace(
    model_config=SimpleNamespace(
        dtype="torch.bfloat16", max_model_len=16, quantization=None, logprobs_mode="raw_logprobs"
    ),
    parallel_config=SimpleNamespace(
        tensor_parallel_size=1, pipeline_parallel_size=1, data_parallel_size=1, world_size=1
    ),
    cache_config=SimpleNamespace(block_size=16),
    weight_transfer_config=SimpleNamespace(backend="nccl"),
    lora_config=None,
)
GPU = TransferRoom("nccl", has_accelerator=True)


def fake_replies() -> web.Application:
    """Answers of workers to rollouts, in vLLM's form."""

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": MODEL, "max_model_len": 16}]})

    async def complete(request: web.Request) -> web.Response:
        body = await request.json()
        one = {"tokens": ["token_id:7"], "token_logprobs": [-0.5], "top_logprobs": [None]}
        choice = {"prompt_token_ids": body["prompt"][0], "token_ids": [7], "logprobs": one}
        return web.json_response({"choices": [choice] * body["n"]})

    async def generate(_: web.Request) -> web.Response:
        logprobs = {"content": [{"token_id": 7, "logprob": -0.5}]}
        choice = {"token_ids": [7], "finish_reason": "length", "logprobs": logprobs}
        return web.json_response({"choices": [choice]})

    async def detokenize(_: web.Request) -> web.Response:
        return web.json_response({"prompt": "seven"})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/completions", complete)
    app.router.add_post("/inference/v1/generate", generate)
    app.router.add_post("/detokenize", detokenize)
    return app


def external_fleet(workers: list[AdminServer], port: int) -> FakeCluster:
    cluster = FakeCluster()
    spec = cluster.fleet["spec"]
    spec |= {"replicas": NUMBER, "serving": {"adminPort": port}}
    spec["engine"] = {}
    spec["weights"]["management"] = "External"
    available = {"type": "Available", "status": "True", "reason": "AllWorkersServing"}
    cluster.fleet["status"]["conditions"] = [
        available
        | {"message": "", "observedGeneration": 1, "lastTransitionTime": "2026-11-22T10:00:00Z"}
    ]
    cluster.objects.delete()
    cluster.pods = [pod(n, podIP=one.address) for n, one in enumerate(workers)]
    for each in cluster.pods:
        each["metadata"]["uid"] = "uid-0"
    cluster.secrets[SECRET] = {
        "metadata": {"ownerReferences": [{"kind": "InferenceFleet", "uid": FLEET_UID}]},
        "data": {"token": base64.b64encode(TOKEN.encode()).decode()},
    }
    return cluster


@pytest.fixture
async def address(tmp_path: Path) -> AsyncIterator[tuple[str, list[AdminServer]]]:
    """The fleet's address, with a key in the path, and its workers."""
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "rl.policy").write_text(KEY)
    flags = ["--external-fleets=rl/policy", f"--keys-folder={tmp_path / 'keys'}"]
    async with contextlib.AsyncExitStack() as stack:
        made, port = await stack.enter_async_context(admin_servers(tmp_path, NUMBER, room=GPU))
        replies = await stack.enter_async_context(TestServer(fake_replies()))
        for one in made:
            one.admin.harness.engine.describe = lambda: described(VLLM_CONFIG, MODEL)
        cluster = external_fleet(made, port)
        cluster.lead(str(replies.make_url("")))
        settings = parse_settings(flags)
        app = build(settings, cluster, Lifecycle(), Metrics())
        server = await stack.enter_async_context(TestServer(app))
        yield str(server.make_url(f"/t/{KEY}/fleets/rl/policy")), made


def received(workers: list[AdminServer]) -> set[Any]:
    return {one.admin.harness.engine.weights for one in workers}


def phases(workers: list[AdminServer]) -> list[Phase]:
    return [one.admin.harness.state.phase for one in workers]


async def test_released_clients_drive_all_workers_and_sample_at_one_address(
    address: tuple[str, list[AdminServer]], tmp_path: Path
) -> None:
    url, workers = address
    write_tiny(tmp_path / "step_7")
    all_serve = [Phase.SERVING] * NUMBER

    def act(name: str, **asked: Any) -> Any:
        return asyncio.to_thread(clients.must, name, **asked)

    starting = ReleasedClients(url, tmp_path)
    clients = await asyncio.to_thread(starting.__enter__)
    try:
        sync = {"file": "/weights/a", "world_size": GROUP_SIZE}
        # Weights from files can be restored, so the worker that fails keeps serving.
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            files = {"weight_dir": str(tmp_path / "step_7")}
            assert (await http.post(f"{url}/update_weights", json=files)).status_code == 200
        workers[1].admin.harness.engine.failures["receive"] = [touched()]
        failing = {"act": "vllm_syncs", "label": "sync-1", **sync}
        failed = await asyncio.to_thread(lambda: clients.outcome(**failing))
        assert failed["status"] == 503, failed
        await act("vllm_syncs", label="sync-2", **sync)
        (weights,) = received(workers)
        assert "/weights/a" in weights
        assert phases(workers) == [Phase.SERVING, Phase.JOINING, Phase.SERVING]
        await workers[1].admin.harness.admit("sync-2")

        found = await act("trl_async", file="/weights/b")
        assert found == {"world_size": NUMBER, "dtype": "torch.bfloat16", "max_model_len": 16}
        (weights,) = received(workers)
        assert "/weights/b" in weights
        assert phases(workers) == all_serve

        done = await act("trl_sync", step="step_7")
        assert (done["model"], done["after"]["completion_ids"]) == (MODEL, [[7], [7]])
        assert done["logprobs_mode"] == "raw_logprobs"
        (weights,) = received(workers)
        assert "embed.weight" in weights
        assert phases(workers) == all_serve

        life = await act("skyrl", model=MODEL)
        assert (life["paused"], life["world_size"]) == ("paused", [NUMBER, NUMBER])
        assert life["tokens"] == [[[7]], [[7]]]
        assert life["text"] == ["seven"]
        assert phases(workers) == all_serve
    finally:
        await asyncio.to_thread(starting.__exit__)
    offsets = [
        next(c for c in one.admin.harness.engine.calls if c.startswith("join_transfer"))
        for one in workers
    ]
    assert [f"'rank_offset': {n + 1}" in text for n, text in enumerate(offsets)] == [True] * NUMBER
