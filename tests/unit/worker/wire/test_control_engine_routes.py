"""Dynamo's engine routes and AReaL's: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import touched
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port

from fleet_worker.runtime.transferring import TransferRoom

# --- Dynamo's engine routes ---------------------------------------------------------------------


async def test_dynamos_native_sequence(control: Port) -> None:
    status, reply = await control.post(
        "/engine/control/pause_generation", mode="keep", clear_cache=False
    )
    assert (status, reply["status"], reply["mode"]) == (200, "ok", "keep")
    assert await control.post("/engine/control/is_paused") == (200, {"is_paused": True})
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": control.step(41)}, "args": []}
    assert (await control.post("/collective_rpc", **rpc))[1] == {"results": [None]}
    named = await control.post("/engine/update/update_weight_version", new_version="41")
    assert named[1]["status"] == "ok"
    told = await control.post("/engine/control/get_weight_version")
    assert told == (200, {"weight_version": "41"})
    assert (await control.post("/engine/control/resume_generation"))[1]["status"] == "ok"


async def test_dynamos_flat_sequence(control: Port) -> None:
    path = control.step(12)
    early = await control.post("/engine/update_weights_from_disk", model_path=path)
    assert (early[0], early[1]["status"]) == (200, "error")
    await control.post("/engine/pause_generation")
    reply = await control.post(
        "/engine/update_weights_from_disk", model_path=path, weight_version="step_12"
    )
    assert reply == (
        200,
        {"status": "ok", "message": "loaded", "version": "step_12", "version_declared": True},
    )
    assert (await control.post("/engine/get_weight_version"))[1]["version"] == "step_12"
    assert (await control.post("/engine/resume_generation"))[1]["status"] == "ok"
    assert (await control.post("/engine/flush_cache"))[1]["status"] == "ok"
    assert (await control.post("/engine/liveness_probe"))[1] == {"status": "ok", "alive": True}


async def test_dynamos_errors_are_answers_and_failures_are_not(control: Port) -> None:
    await control.post("/engine/pause_generation")
    status, reply = await control.post("/engine/update_weights_from_disk", model_path="/nowhere")
    assert (status, reply["status"], reply["reason"]) == (200, "error", "SourceOutsideRoots")
    status, reply = await control.post("/engine/update_weights_from_tensor")
    assert (status, reply["status"]) == (200, "error")
    control.bench.engine.failures["probe"] = [touched()]
    status, reply = await control.post(
        "/engine/update_weights_from_disk", model_path=control.step(1)
    )
    assert (status, reply["status"]) == (500, "error")


async def test_dynamos_distributed_steps(serving: Bench, tmp_path: Path) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    group = {"host": "t", "port": 1, "rank_offset": 0, "inference_world_size": 1}
    assert (await control.post("/engine/init_weights_update_group", **group))[1]["status"] == "ok"

    async def take(step: str, **more: Any) -> dict[str, Any]:
        body = {"engine_rpc": step, "allow_unpaused": True, "reset_prefix_cache": False, **more}
        return (await control.post("/engine/update_weights_from_distributed", **body))[1]

    mixed = {"engine_rpc": "start_weight_update", "allow_unpaused": True}
    refused = await control.post("/engine/update_weights_from_distributed", **mixed)
    assert refused[1]["status"] == "error"
    unpaused = {"engine_rpc": "start_weight_update"}
    refused = await control.post("/engine/update_weights_from_distributed", **unpaused)
    assert "pause" in refused[1]["message"]
    assert (await take("start_weight_update"))["status"] == "ok"
    assert (await take("update_weights", update_info={"names": []}))["status"] == "ok"
    assert (await take("finish_weight_update", weight_version="3"))["version"] == "3"
    assert (await take("update_weights_from_path"))["status"] == "error"
    await control.client.aclose()


@pytest.mark.parametrize("path", ["/engine/load_lora", "/engine/update/load_lora", "/v1/loras"])
async def test_dynamos_adapters(control: Port, path: str) -> None:
    control.bench.agent.adapters._slots = 2
    control.bench.agent.adapters.max_rank = 8
    folder = write_adapter(control.bench.root / "a b", seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "source": {"uri": f"file://{str(folder).replace(' ', '%20')}"}}
    status, reply = await control.post(path, **body)

    assert (status, reply["status"], reply["lora_name"]) == (200, "success", "r")
    assert reply["lora_id"] > 0
    other = {"lora_name": "r", "source": {"uri": "s3://bucket/x"}}
    assert (await control.post(path, **other))[1]["status"] == "error"
    assert (await control.post("/engine/unload_lora", lora_name="r"))[1]["status"] == "success"


# --- AReaL --------------------------------------------------------------------------------------


async def test_areals_sequence(control: Port) -> None:
    assert (await control.post("/areal_pause_generation"))[1]["success"] is True
    status, reply = await control.post("/areal_update_weights", model_path=control.step(3))
    assert (status, reply["success"]) == (200, True)
    assert (await control.post("/areal_continue_generation"))[1]["success"] is True
    assert control.bench.engine.calls[0] == "pause abort"
    assert control.bench.state.version == "3"


async def test_areal_is_told_of_refusals_by_400(control: Port) -> None:
    status, reply = await control.post("/areal_update_weights", model_path="/nowhere")

    assert (status, reply["success"]) == (400, False)
    assert "root" in reply["message"]
