"""vLLM's RL routes: paths, bodies and answers."""

from __future__ import annotations

from typing import Any

import pytest
from tests.support.admin_ports import TrainerPort


@pytest.mark.parametrize("mode", ["", "KEEP", "Keep", "drop", "keep "])
async def test_a_mode_is_one_of_three_values(trainer_port: TrainerPort, mode: str) -> None:
    assert (await trainer_port.client.post("/pause", params={"mode": mode})).status_code == 400
    assert (await trainer_port.post("/engine/pause_generation", mode=mode))[1]["status"] == "error"
    assert trainer_port.harness.engine.calls == []


async def test_the_default_mode_is_vllms(trainer_port: TrainerPort) -> None:
    await trainer_port.client.post("/pause")

    assert trainer_port.harness.engine.calls == ["pause abort"]


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
