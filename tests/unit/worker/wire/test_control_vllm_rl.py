"""vLLM's RL routes: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.fake_engine import touched
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port

from fleet_worker.protocol import Phase, Reason
from fleet_worker.runtime.transferring import TransferRoom


@pytest.mark.parametrize("mode", ["", "KEEP", "Keep", "drop", "keep "])
async def test_a_mode_is_one_of_three_words(control: Port, mode: str) -> None:
    assert (await control.client.post("/pause", params={"mode": mode})).status_code == 400
    assert (await control.post("/engine/pause_generation", mode=mode))[1]["status"] == "error"
    assert control.bench.engine.calls == []


async def test_the_default_mode_is_vllms(control: Port) -> None:
    await control.client.post("/pause")

    assert control.bench.engine.calls == ["pause abort"]


async def test_a_wait_answers_when_nothing_runs_any_more(control: Port) -> None:
    status, reply = await control.post("/pause?mode=wait")

    assert (status, reply) == (200, {"status": "paused", "inflight_requests": 0})
    assert await control.get("/is_paused") == (200, {"is_paused": True})


async def test_nemo_rls_sequence(control: Port) -> None:
    folder = write_tiny(control.bench.root / "refit")
    await control.post("/pause?mode=keep&clear_cache=true")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}, "timeout": 1800}
    assert await control.post("/collective_rpc", **rpc) == (200, {"results": [None]})
    assert await control.post("/reset_prefix_cache") == (200, {"success": True})
    assert (await control.post("/resume"))[0] == 200
    assert str(control.bench.state.version).startswith("refit-")


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
async def test_no_method_but_one_may_be_called_and_no_path_but_below_the_roots(
    control: Port, rpc: dict[str, Any]
) -> None:
    status, _ = await control.post("/collective_rpc", **rpc)

    assert status in (400, 422)
    assert control.bench.engine.calls == []


async def test_trls_sequence(serving: Bench, tmp_path: Path) -> None:
    control = Port(serving, tmp_path, room=TransferRoom("own"))
    assert await control.get("/get_world_size") == (200, {"world_size": 1})
    info = await control.get("/server_info?config_format=json")
    assert info[1]["vllm_config"]["model_config"]["dtype"] == "torch.bfloat16"
    assert (await control.post("/init_weight_transfer_engine", init_info={"world_size": 2}))[
        0
    ] == 200
    assert (await control.post("/start_weight_update"))[0] == 200
    assert (await control.post("/update_weights", update_info={"names": ["a"]}))[0] == 200
    status, reply = await control.post("/finish_weight_update", weight_version="9")
    assert (status, reply["weight_version"]) == (200, "9")
    assert await control.get("/weight_info") == (200, {"weight_version": "9"})
    assert (await control.post("/resume"))[0] == 200
    assert serving.state.phase is Phase.SERVING
    await control.client.aclose()


async def test_a_label_without_weights_is_refused(control: Port) -> None:
    status, reply = await control.post("/update_weight_version", new_version="41")

    assert (status, reply["error"]["type"]) == (409, "VersionMismatch")
    assert await control.post("/update_weight_version", new_version="base") == (
        200,
        {"success": True, "new_version": "base"},
    )


async def test_sleep_and_wake(control: Port) -> None:
    assert (await control.client.post("/sleep?level=1")).json() == {"status": "asleep"}
    assert await control.get("/is_sleeping") == (200, {"is_sleeping": True})
    reply = await control.client.post("/wake_up?tags=weights&tags=kv_cache")
    assert reply.json() == {"status": "awake"}
    assert "wake ['weights', 'kv_cache']" in control.bench.engine.calls
    assert (await control.client.post("/sleep?level=2")).status_code == 409
    assert (await control.client.post("/sleep?level=x")).status_code == 400


async def test_requests_are_aborted_by_name_or_all_of_them(control: Port) -> None:
    assert await control.post("/abort_requests", request_ids=["a", "b"]) == (
        200,
        {"status": "aborted", "aborted": 2},
    )
    await control.post("/abort_requests")
    await control.post("/engine/abort_request", request_id="c")
    assert control.bench.engine.calls == ["abort ['a', 'b']", "abort None", "abort ['c']"]


async def test_a_failure_of_the_engine_is_5xx_and_a_broken_worker_does_not_resume(
    control: Port,
) -> None:
    await control.post("/pause?mode=keep")
    control.bench.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    path = control.step(5)
    status, reply = await control.post("/update_weights", weight_dir=path)
    assert (status, reply["error"]["type"]) == (500, "ProbeFailed")
    assert (await control.post("/update_weights", weight_dir=path))[0] == 409
    status, reply = await control.post("/resume")
    assert (status, reply["error"]["type"]) == (409, "Broken")
