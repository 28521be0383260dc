"""prime-rl's control surface: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import untouched
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port

from fleet_worker.runtime.transferring import TransferRoom


async def test_prime_rls_sequence(control: Port) -> None:
    assert await control.post("/pause?mode=keep&clear_cache=false") == (
        200,
        {"status": "paused", "inflight_requests": 0},
    )
    status, reply = await control.post("/update_weights", weight_dir=control.step(41))
    assert (status, reply) == (200, {"status": "ok", "weight_version": "41"})
    assert await control.post("/resume") == (200, {"status": "resumed"})
    assert control.bench.state.version == "41"
    assert control.bench.engine.calls[0] == "pause keep and keep"


@pytest.mark.parametrize("weight_dir", ["", None])
async def test_no_directory_is_refused(control: Port, weight_dir: str | None) -> None:
    status, reply = await control.post("/update_weights", weight_dir=weight_dir)

    assert (status, reply["error"]["type"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body", [{}, {"weight_dir": "/a", "update_info": {}}, {"something": 1}], ids=str
)
async def test_an_update_must_say_which_kind_it_is(control: Port, body: dict[str, Any]) -> None:
    assert (await control.post("/update_weights", **body))[0] == 400
    reply = await control.client.post("/update_weights", content=b"[]")
    assert reply.status_code == 400


async def test_what_prime_rl_cannot_have_is_a_clear_4xx(control: Port) -> None:
    status, reply = await control.post(
        "/init_broadcaster", host="h", port=1, rank_offset=0, inference_world_size=1
    )

    assert (status, reply["error"]["type"]) == (409, "NotAvailable")


async def test_prime_rls_ranks_are_counted_from_its_trainer(serving: Bench, tmp_path: Path) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    body = {"host": "trainer", "port": 29501, "rank_offset": 2, "inference_world_size": 4}
    assert (await control.post("/init_broadcaster", **body, timeout=1200))[0] == 200

    expected = {
        "master_address": "trainer",
        "master_port": 29501,
        "rank_offset": 3,
        "world_size": 5,
    }
    assert serving.engine.calls == [f"join_transfer {expected}"]
    await control.client.aclose()


async def test_adapters_by_prime_rls_route(control: Port) -> None:
    control.bench.agent.adapters._slots = 2
    control.bench.agent.adapters.max_rank = 8
    for number in (1, 2):
        path = control.bench.root / "lora" / f"step_{number}"
        missing = await control.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert missing[0] == 404  # its client comes again: the file system may be slow
        write_adapter(path, seed=number, modules=TINY_MODULES, rank=2)
        reply = await control.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert reply == (200, {"status": "ok"})
        assert control.bench.state.adapters[0].version == str(number)
    assert (await control.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert (await control.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert control.bench.state.adapters == ()
    control.bench.agent.adapters.close()


async def test_the_same_number_with_other_adapter_files_is_refused(control: Port) -> None:
    control.bench.agent.adapters._slots = 2
    control.bench.agent.adapters.max_rank = 8
    path = control.bench.root / "lora" / "step_1"
    write_adapter(path, seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "lora_path": str(path)}
    assert (await control.post("/load_lora_adapter", **body))[0] == 200
    assert (await control.post("/load_lora_adapter", **body))[0] == 200
    write_adapter(path, seed=2, modules=TINY_MODULES, rank=2)

    status, reply = await control.post("/load_lora_adapter", **body)
    assert (status, reply["error"]["type"]) == (409, "VersionReused")
    await control.post("/v1/unload_lora_adapter", lora_name="r")


async def test_liveness_is_a_round_trip_to_the_engine(control: Port) -> None:
    assert await control.get("/liveness") == (200, {"status": "ok"})
    assert control.bench.engine.calls == ["ping"]
    control.bench.engine.failures["ping"] = [untouched()]
    assert await control.get("/liveness") == (503, {"status": "engine_unresponsive"})


async def test_a_trainer_waits_until_the_worker_is_admitted(joining: Bench, tmp_path: Path) -> None:
    control = Port(joining, tmp_path)
    assert (await control.get("/health"))[0] == 503
    await joining.admit("base")
    assert (await control.get("/health"))[0] == 200
    await joining.pause()
    assert (await control.get("/health"))[0] == 200
    joining.engine.is_dead = True
    assert (await control.get("/health"))[0] == 503
    await control.client.aclose()


async def test_models_and_metrics_are_asked_on_the_admin_port(control: Port) -> None:
    status, models = await control.get("/v1/models")
    assert (status, models["data"][0]["id"], models["data"][0]["max_model_len"]) == (
        200,
        "fake",
        16,
    )
    metrics = await control.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "rlfleet_worker_admitted 1.0" in metrics.text
