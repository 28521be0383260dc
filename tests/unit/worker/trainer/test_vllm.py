"""vLLM's RL routes: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import touched
from tests.support.tiny import write_tiny
from tests.support.worker_harness import WorkerHarness

from fleet_worker.protocol import Phase, Reason
from fleet_worker.trainer.transfers import TransferRoom


@pytest.mark.parametrize("mode", ["", "KEEP", "Keep", "drop", "keep "])
async def test_a_mode_is_one_of_three_values(trainer_port: TrainerPort, mode: str) -> None:
    assert (await trainer_port.client.post("/pause", params={"mode": mode})).status_code == 400
    assert (await trainer_port.post("/engine/pause_generation", mode=mode))[1]["status"] == "error"
    assert trainer_port.harness.engine.calls == []


async def test_the_default_mode_is_vllms(trainer_port: TrainerPort) -> None:
    await trainer_port.client.post("/pause")

    assert trainer_port.harness.engine.calls == ["pause abort"]


async def test_a_waiting_pause_answers_after_the_last_request(trainer_port: TrainerPort) -> None:
    status, reply = await trainer_port.post("/pause?mode=wait")

    assert (status, reply) == (200, {"status": "paused", "inflight_requests": 0})
    assert await trainer_port.get("/is_paused") == (200, {"is_paused": True})


async def test_the_sequence_of_nemo_rl(trainer_port: TrainerPort) -> None:
    folder = write_tiny(trainer_port.harness.root / "refit")
    await trainer_port.post("/pause?mode=keep&clear_cache=true")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}, "timeout": 1800}
    assert await trainer_port.post("/collective_rpc", **rpc) == (200, {"results": [None]})
    assert await trainer_port.post("/reset_prefix_cache") == (200, {"success": True})
    assert (await trainer_port.post("/resume"))[0] == 200
    assert str(trainer_port.harness.state.version).startswith("refit-")


@pytest.mark.parametrize(
    "rpc",
    [
        {"method": "shutdown"},
        {"method": "rlfleet_load", "args": []},
        {"method": "reload_weights"},
        {"method": "reload_weights", "args": ["/etc"]},
        {"method": "reload_weights", "kwargs": {"weights_path": ""}},
        {"method": "reload_weights", "kwargs": {"weights_path": "/etc"}},
        {"method": ["reload_weights"]},
        {},
    ],
    ids=str,
)
async def test_only_one_method_may_be_called_and_only_paths_below_the_roots(
    trainer_port: TrainerPort, rpc: dict[str, Any]
) -> None:
    status, _ = await trainer_port.post("/collective_rpc", **rpc)

    assert status in (400, 422)
    assert trainer_port.harness.engine.calls == []


async def test_the_sequence_of_trl(serving: WorkerHarness, tmp_path: Path) -> None:
    trainer_port = TrainerPort(serving, tmp_path, room=TransferRoom("own"))
    assert await trainer_port.get("/get_world_size") == (200, {"world_size": 1})
    info = await trainer_port.get("/server_info?config_format=json")
    assert info[1]["vllm_config"]["model_config"]["dtype"] == "torch.bfloat16"
    assert (await trainer_port.post("/init_weight_transfer_engine", init_info={"world_size": 2}))[
        0
    ] == 200
    assert (await trainer_port.post("/start_weight_update"))[0] == 200
    assert (await trainer_port.post("/update_weights", update_info={"names": ["a"]}))[0] == 200
    status, reply = await trainer_port.post("/finish_weight_update", weight_version="9")
    assert (status, reply["weight_version"]) == (200, "9")
    assert await trainer_port.get("/weight_info") == (200, {"weight_version": "9"})
    assert (await trainer_port.post("/resume"))[0] == 200
    assert serving.state.phase is Phase.SERVING
    await trainer_port.client.aclose()


async def test_a_label_without_weights_is_refused(trainer_port: TrainerPort) -> None:
    status, reply = await trainer_port.post("/update_weight_version", new_version="41")

    assert (status, reply["error"]["type"]) == (409, "VersionMismatch")
    assert await trainer_port.post("/update_weight_version", new_version="base") == (
        200,
        {"success": True, "new_version": "base"},
    )


async def test_sleep_and_wake(trainer_port: TrainerPort) -> None:
    assert (await trainer_port.client.post("/sleep?level=1")).json() == {"status": "asleep"}
    assert await trainer_port.get("/is_sleeping") == (200, {"is_sleeping": True})
    reply = await trainer_port.client.post("/wake_up?tags=weights&tags=kv_cache")
    assert reply.json() == {"status": "awake"}
    assert "wake ['weights', 'kv_cache']" in trainer_port.harness.engine.calls
    assert (await trainer_port.client.post("/sleep?level=2")).status_code == 409
    assert (await trainer_port.client.post("/sleep?level=x")).status_code == 400


async def test_requests_are_aborted_by_name_or_all_at_once(trainer_port: TrainerPort) -> None:
    assert await trainer_port.post("/abort_requests", request_ids=["a", "b"]) == (
        200,
        {"status": "aborted", "aborted": 2},
    )
    await trainer_port.post("/abort_requests")
    await trainer_port.post("/engine/abort_request", request_id="c")
    assert trainer_port.harness.engine.calls == ["abort ['a', 'b']", "abort None", "abort ['c']"]


async def test_a_failure_of_the_engine_is_5xx_and_a_broken_worker_does_not_resume(
    trainer_port: TrainerPort,
) -> None:
    await trainer_port.post("/pause?mode=keep")
    trainer_port.harness.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    path = trainer_port.step(5)
    status, reply = await trainer_port.post("/update_weights", weight_dir=path)
    assert (status, reply["error"]["type"]) == (500, "ProbeFailed")
    assert (await trainer_port.post("/update_weights", weight_dir=path))[0] == 409
    status, reply = await trainer_port.post("/resume")
    assert (status, reply["error"]["type"]) == (409, "Broken")
