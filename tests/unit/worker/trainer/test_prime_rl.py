"""prime-rl's routes: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import untouched
from tests.support.worker_harness import WorkerHarness

from fleet_worker.trainer.transfers import TransferRoom


async def test_the_sequence_of_prime_rl(trainer_port: TrainerPort) -> None:
    assert await trainer_port.post("/pause?mode=keep&clear_cache=false") == (
        200,
        {"status": "paused", "inflight_requests": 0},
    )
    status, reply = await trainer_port.post("/update_weights", weight_dir=trainer_port.step(41))
    assert (status, reply) == (200, {"status": "ok", "weight_version": "41"})
    assert await trainer_port.post("/resume") == (200, {"status": "resumed"})
    assert trainer_port.harness.state.version == "41"
    assert trainer_port.harness.engine.calls[0] == "pause keep and keep"


@pytest.mark.parametrize("weight_dir", ["", None])
async def test_a_missing_directory_is_refused(
    trainer_port: TrainerPort, weight_dir: str | None
) -> None:
    status, reply = await trainer_port.post("/update_weights", weight_dir=weight_dir)

    assert (status, reply["error"]["type"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body", [{}, {"weight_dir": "/a", "update_info": {}}, {"something": 1}], ids=str
)
async def test_an_update_must_name_its_kind(
    trainer_port: TrainerPort, body: dict[str, Any]
) -> None:
    assert (await trainer_port.post("/update_weights", **body))[0] == 400
    reply = await trainer_port.client.post("/update_weights", content=b"[]")
    assert reply.status_code == 400


async def test_an_unavailable_broadcaster_is_a_409_with_its_reason(
    trainer_port: TrainerPort,
) -> None:
    status, reply = await trainer_port.post(
        "/init_broadcaster", host="h", port=1, rank_offset=0, inference_world_size=1
    )

    assert (status, reply["error"]["type"]) == (409, "NotAvailable")


async def test_ranks_of_prime_rl_start_after_its_trainer(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    trainer_port = TrainerPort(serving, tmp_path, room=TransferRoom("own"))
    body = {"host": "trainer", "port": 29501, "rank_offset": 2, "inference_world_size": 4}
    assert (await trainer_port.post("/init_broadcaster", **body, timeout=1200))[0] == 200

    expected = {
        "master_address": "trainer",
        "master_port": 29501,
        "rank_offset": 3,
        "world_size": 5,
    }
    assert serving.engine.calls == [f"join_transfer {expected}"]
    await trainer_port.client.aclose()


async def test_adapters_over_the_route_of_prime_rl(trainer_port: TrainerPort) -> None:
    trainer_port.harness.agent.adapters._slots = 2
    trainer_port.harness.agent.adapters.max_rank = 8
    for number in (1, 2):
        path = trainer_port.harness.root / "lora" / f"step_{number}"
        missing = await trainer_port.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert missing[0] == 404  # its client comes again: the file system may be slow
        write_adapter(path, seed=number, modules=TINY_MODULES, rank=2)
        reply = await trainer_port.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert reply == (200, {"status": "ok"})
        assert trainer_port.harness.state.adapters[0].version == str(number)
    assert (await trainer_port.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert (await trainer_port.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert trainer_port.harness.state.adapters == ()
    trainer_port.harness.agent.adapters.close()


async def test_the_same_number_with_other_adapter_files_is_refused(
    trainer_port: TrainerPort,
) -> None:
    trainer_port.harness.agent.adapters._slots = 2
    trainer_port.harness.agent.adapters.max_rank = 8
    path = trainer_port.harness.root / "lora" / "step_1"
    write_adapter(path, seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "lora_path": str(path)}
    assert (await trainer_port.post("/load_lora_adapter", **body))[0] == 200
    assert (await trainer_port.post("/load_lora_adapter", **body))[0] == 200
    write_adapter(path, seed=2, modules=TINY_MODULES, rank=2)

    status, reply = await trainer_port.post("/load_lora_adapter", **body)
    assert (status, reply["error"]["type"]) == (409, "VersionReused")
    await trainer_port.post("/v1/unload_lora_adapter", lora_name="r")


async def test_the_liveness_route_calls_the_engine(trainer_port: TrainerPort) -> None:
    assert await trainer_port.get("/liveness") == (200, {"status": "ok"})
    assert trainer_port.harness.engine.calls == ["ping"]
    trainer_port.harness.engine.failures["ping"] = [untouched()]
    assert await trainer_port.get("/liveness") == (503, {"status": "engine_unresponsive"})


async def test_a_trainer_waits_until_the_worker_is_admitted(
    joining: WorkerHarness, tmp_path: Path
) -> None:
    trainer_port = TrainerPort(joining, tmp_path)
    assert (await trainer_port.get("/health"))[0] == 503
    await joining.admit("base")
    assert (await trainer_port.get("/health"))[0] == 200
    await joining.pause()
    assert (await trainer_port.get("/health"))[0] == 200
    joining.engine.is_dead = True
    assert (await trainer_port.get("/health"))[0] == 503
    await trainer_port.client.aclose()


async def test_models_and_metrics_are_on_the_admin_port(trainer_port: TrainerPort) -> None:
    status, models = await trainer_port.get("/v1/models")
    assert (status, models["data"][0]["id"], models["data"][0]["max_model_len"]) == (
        200,
        "fake",
        16,
    )
    metrics = await trainer_port.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "rlfleet_worker_admitted 1.0" in metrics.text
