"""Dynamo's engine routes: paths, bodies and answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import touched


async def test_refusals_to_dynamo_are_answers_with_200_and_failures_are_5xx(
    trainer_port: TrainerPort,
) -> None:
    await trainer_port.post("/engine/pause_generation")
    status, reply = await trainer_port.post(
        "/engine/update_weights_from_disk", model_path="/nowhere"
    )
    assert (status, reply["status"], reply["reason"]) == (200, "error", "SourceOutsideRoots")
    status, reply = await trainer_port.post("/engine/update_weights_from_tensor")
    assert (status, reply["status"]) == (200, "error")
    trainer_port.harness.engine.failures["probe"] = [touched()]
    status, reply = await trainer_port.post(
        "/engine/update_weights_from_disk", model_path=trainer_port.step(1)
    )
    assert (status, reply["status"]) == (500, "error")


async def test_the_distributed_updates_of_dynamo(transfer_port: TrainerPort) -> None:
    group = {"host": "t", "port": 1, "rank_offset": 0, "inference_world_size": 1}
    assert (await transfer_port.post("/engine/init_weights_update_group", **group))[1][
        "status"
    ] == "ok"

    async def take(step: str, **more: Any) -> dict[str, Any]:
        body = {"engine_rpc": step, "allow_unpaused": True, "reset_prefix_cache": False, **more}
        return (await transfer_port.post("/engine/update_weights_from_distributed", **body))[1]

    mixed = {"engine_rpc": "start_weight_update", "allow_unpaused": True}
    refused = await transfer_port.post("/engine/update_weights_from_distributed", **mixed)
    assert refused[1]["status"] == "error"
    unpaused = {"engine_rpc": "start_weight_update"}
    refused = await transfer_port.post("/engine/update_weights_from_distributed", **unpaused)
    assert "pause" in refused[1]["message"]
    assert (await take("start_weight_update"))["status"] == "ok"
    assert (await take("update_weights", update_info={"names": []}))["status"] == "ok"
    done = await take("finish_weight_update", weight_version="3")
    assert (done["version"], done["version_declared"]) == ("3", True)
    await take("start_weight_update")
    await take("update_weights", update_info={"names": []})
    done = await take("finish_weight_update")
    assert done["version"] not in {None, "3"}, "the worker has named it"
    assert done["version_declared"] is False
    assert (await take("update_weights_from_path"))["status"] == "error"


@pytest.mark.parametrize("path", ["/engine/load_lora", "/engine/update/load_lora", "/v1/loras"])
async def test_the_adapters_of_dynamo(trainer_port: TrainerPort, path: str) -> None:
    trainer_port.take_adapters()
    folder = write_adapter(trainer_port.harness.root / "a b", seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "source": {"uri": f"file://{str(folder).replace(' ', '%20')}"}}
    status, reply = await trainer_port.post(path, **body)

    assert (status, reply["status"], reply["lora_name"]) == (200, "success", "r")
    assert reply["lora_id"] > 0
    other = {"lora_name": "r", "source": {"uri": "s3://bucket/x"}}
    assert (await trainer_port.post(path, **other))[1]["status"] == "error"
    assert (await trainer_port.post("/engine/unload_lora", lora_name="r"))[1]["status"] == "success"


async def test_an_abort_without_an_id_ends_no_request(trainer_port: TrainerPort) -> None:
    """vLLM's call without ids ends all requests."""
    for body in ({}, {"request_id": None}, {"request_ids": ["a"]}):
        assert (await trainer_port.post("/engine/abort_request", **body))[1]["status"] == "error"

    assert trainer_port.harness.engine.calls == []
    assert (await trainer_port.post("/engine/abort_request", request_id="a"))[1]["status"] == "ok"
    assert trainer_port.harness.engine.calls == ["abort ['a']"]


@pytest.mark.parametrize(
    ("body", "call"),
    [
        ({}, "pause keep and keep"),
        ({"mode": None, "clear_cache": None}, "pause keep and keep"),
        ({"mode": "abort", "clear_cache": True}, "pause abort"),
        ({"mode": "keep", "clear_cache": "false"}, "pause keep and keep"),
    ],
)
async def test_a_pause_of_dynamo_has_its_own_defaults(
    trainer_port: TrainerPort, body: dict[str, Any], call: str
) -> None:
    assert (await trainer_port.post("/engine/pause_generation", **body))[1]["status"] == "ok"
    assert trainer_port.harness.engine.calls == [call]


@pytest.mark.parametrize("mode", [["keep"], {}, 1, "", "KEEP"])
async def test_a_pause_of_dynamo_in_no_known_mode_is_refused(
    trainer_port: TrainerPort, mode: Any
) -> None:
    assert (await trainer_port.post("/engine/pause_generation", mode=mode))[1]["status"] == "error"
    assert trainer_port.harness.engine.calls == []
