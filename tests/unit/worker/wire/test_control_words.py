"""What several control surfaces say, each in its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port

from fleet_worker.runtime.transferring import TransferRoom


async def test_a_cache_that_requests_hold_is_not_dropped_unless_they_are_stopped(
    control: Port,
) -> None:
    control.bench.engine.running = 2
    by_vllm = await control.post("/reset_prefix_cache")
    by_dynamo = await control.post("/engine/flush_cache")
    forced = [
        (await control.client.post("/reset_prefix_cache?reset_running_requests=true")).json(),
        (await control.post("/reset_prefix_cache", reset_running_requests=True))[1],
    ]
    control.bench.engine.running = 0

    assert by_vllm == (200, {"success": False})
    assert (by_dynamo[0], by_dynamo[1]["status"], by_dynamo[1]["reason"]) == (
        200,
        "error",
        "WrongPhase",
    )
    assert forced == [{"success": True}] * 2
    assert (await control.post("/reset_prefix_cache"))[1] == {"success": True}
    assert (await control.post("/engine/control/flush_cache"))[1]["status"] == "ok"


GROUP = {"host": "trainer", "port": 29500, "rank_offset": 4, "inference_world_size": 8}
JOINED = {
    "master_address": "trainer",
    "master_port": 29500,
    "rank_offset": 5,
    "world_size": 9,
}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/init_broadcaster", GROUP, id="prime-rl"),
        pytest.param("/engine/init_weights_update_group", GROUP, id="Dynamo, flat"),
        pytest.param("/engine/update/init_weight_transfer_engine", GROUP, id="Dynamo, native"),
        pytest.param("/init_weight_transfer_engine", {"init_info": JOINED}, id="vLLM"),
        pytest.param(
            "/engine/update/init_weight_transfer_engine", {"init_info": JOINED}, id="both at once"
        ),
    ],
)
async def test_every_trainer_ends_up_in_the_same_group_of_processes(
    serving: Bench, tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    """The trainer is rank 0: the first process of this engine comes one later than it is told."""
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    assert (await control.post(path, **body))[0] == 200
    assert f"join_transfer {JOINED}" in serving.engine.calls
    await control.client.aclose()


@pytest.mark.parametrize("missing", ["host", "port", "inference_world_size"])
async def test_a_group_that_is_not_described_is_not_joined(
    serving: Bench, tmp_path: Path, missing: str
) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    body = {key: value for key, value in GROUP.items() if key != missing}
    dynamo = await control.post("/engine/init_weights_update_group", **body)
    prime = await control.post("/init_broadcaster", **body)
    await control.client.aclose()

    assert (dynamo[0], dynamo[1]["status"]) == (200, "error")
    assert prime[0] == 400
    assert missing in dynamo[1]["message"]
    assert missing in prime[1]["error"]["message"]
    assert serving.engine.calls == []


@pytest.mark.parametrize(
    "path", ["/shutdown_weight_transfer_engine", "/engine/destroy_weights_update_group"]
)
async def test_a_group_that_was_joined_is_left_again(
    serving: Bench, tmp_path: Path, path: str
) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    await control.post("/init_weight_transfer_engine", init_info=JOINED)
    assert (await control.post(path))[0] == 200
    assert serving.engine.calls[-1] == "leave_transfer"
    await control.client.aclose()


async def test_dynamos_files_are_loaded_by_one_method_and_only_while_paused(control: Port) -> None:
    path = control.step(12)
    await control.post("/engine/pause_generation")
    body = {"model_path": path, "engine_rpc": "load_pickle"}
    status, reply = await control.post("/engine/update_weights_from_disk", **body)

    assert (status, reply["status"], reply["reason"]) == (200, "error", "BadRequest")
    assert not [call for call in control.bench.engine.calls if call.startswith("load")]
    assert control.bench.state.version == "base"


async def test_tensors_that_come_without_saying_which_are_refused(
    serving: Bench, tmp_path: Path
) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    await control.post("/init_weight_transfer_engine", init_info=JOINED)
    await control.post("/start_weight_update")
    status, reply = await control.post("/engine/update/update_weights")
    await control.client.aclose()

    assert (status, reply["status"]) == (200, "error")
    assert "update_info" in reply["message"]
    assert "receive" not in serving.engine.calls


@pytest.mark.parametrize(
    "path", ["/engine/set_weight_version", "/engine/update/update_weight_version"]
)
@pytest.mark.parametrize("body", [{}, {"weight_version": ""}, {"new_version": None}])
async def test_a_label_has_to_be_named(control: Port, path: str, body: dict[str, Any]) -> None:
    status, reply = await control.post(path, **body)

    assert (status, reply["status"], reply["message"]) == (200, "error", "no version is named")
    assert control.bench.state.version == "base"
