"""Routes of the admin port for trainers: access, and the list of routes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.admin_ports import TrainerPort
from tests.support.worker_harness import WorkerHarness

from fleet_worker.protocol import Management, Phase, Reason

# --- access -------------------------------------------------------------------------------------


def readers() -> set[tuple[str, str]]:
    return {
        ("GET", "/get_world_size"),
        ("GET", "/health"),
        ("GET", "/is_paused"),
        ("GET", "/is_sleeping"),
        ("GET", "/liveness"),
        ("GET", "/metrics"),
        ("GET", "/server_info"),
        ("GET", "/v1/models"),
        ("GET", "/weight_info"),
        ("POST", "/engine/control/get_weight_version"),
        ("POST", "/engine/control/is_paused"),
        ("POST", "/engine/get_weight_version"),
        ("POST", "/engine/liveness_probe"),
    }


async def test_every_route_of_every_api_needs_the_token(trainer_port: TrainerPort) -> None:
    async with trainer_port.client_at("10.0.0.9", token=None) as stranger:
        for method, path in trainer_port.routes:
            reply = await stranger.request(method, path, json={})
            assert reply.status_code == 401, path
            assert reply.json().get("state") is None, path
    async with trainer_port.client_at("10.0.0.9", token="wrong") as stranger:
        for method, path in trainer_port.routes:
            assert (await stranger.request(method, path, json={})).status_code == 401, path
    assert trainer_port.harness.engine.calls == []
    assert trainer_port.harness.state.phase is Phase.SERVING


async def test_the_token_may_be_in_the_path(
    trainer_port: TrainerPort, caplog: pytest.LogCaptureFixture
) -> None:
    async with trainer_port.client_at("10.0.0.9", token=None) as plain:
        codes = [
            (await plain.get("/t/right/is_paused")).status_code,
            (await plain.post("/t/right/pause?mode=keep")).status_code,
            (await plain.post("/t/right/resume")).status_code,
            (await plain.get("/t/wrong/is_paused")).status_code,
            (await plain.get("/t//is_paused")).status_code,
            (await plain.get("/t/right")).status_code,
        ]
        refused = await plain.post("/t/right/pause?mode=never")

    assert codes == [200, 200, 200, 401, 401, 404]
    assert refused.status_code == 400
    assert "right" not in caplog.text
    assert "right" not in refused.text


async def test_a_wrong_token_in_the_path_is_refused_despite_a_right_header(
    trainer_port: TrainerPort,
) -> None:
    assert (await trainer_port.client.get("/t/wrong/is_paused")).status_code == 401


async def test_under_operator_management_every_mutating_route_is_closed(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    trainer_port = TrainerPort(serving, tmp_path, management=Management.OPERATOR)
    bodies: dict[str, Any] = {
        "new_version": "1",
        "weight_dir": "/x",
        "model_path": "/x",
        "method": "reload_weights",
        "init_info": {},
        "lora_name": "a",
        "lora_path": "/x",
        "source": {"uri": "file:///x"},
        "request_id": "1",
        "host": "h",
        "port": 1,
        "rank_offset": 0,
        "inference_world_size": 1,
        "engine_rpc": "reload_weights",
    }
    updates = {**bodies}
    updates.pop("weight_dir")
    shut = 0
    for method, path in trainer_port.routes:
        if path.startswith("/v1/worker") or (method, path) in readers():
            continue
        if path == "/engine/update_weights_from_tensor":
            continue  # it exists nowhere
        if path == "/engine/update_weights_from_distributed":
            bodies = {**bodies, "engine_rpc": "start_weight_update"}
        body = {**updates, "update_info": {}} if path == "/engine/update/update_weights" else bodies
        reply = await trainer_port.client.request(method, path, json=body)
        text = reply.text
        assert "WeightVersion" in text, (path, text)
        assert reply.status_code in (200, 400, 409), path
        assert reply.status_code != 200 or reply.json()["status"] == "error", path
        shut += 1
    assert shut > 30
    assert serving.engine.calls == []
    await trainer_port.client.aclose()


async def test_reading_routes_are_open_to_trainers_under_any_management(
    serving: WorkerHarness, tmp_path: Path
) -> None:
    trainer_port = TrainerPort(serving, tmp_path, management=Management.OPERATOR)
    for method, path in sorted(readers()):
        reply = await trainer_port.client.request(method, path, json={})
        assert reply.status_code == 200, path
    await trainer_port.client.aclose()


async def test_a_second_driver_gets_409_with_the_holder_and_the_remaining_time(
    trainer_port: TrainerPort,
) -> None:
    await trainer_port.post("/pause?mode=keep")
    async with trainer_port.client_at("10.0.0.2") as second:
        reply = await second.post("/pause?mode=keep")
        update = await second.post("/update_weights", json={"weight_dir": trainer_port.step(1)})
        dynamo = await second.post("/engine/resume_generation", json={})

    assert reply.status_code == update.status_code == 409
    error = reply.json()["error"]
    assert (error["type"], "10.0.0.1" in error["message"]) == ("HeldByAnother", True)
    assert int(reply.headers["retry-after"]) == 60
    assert dynamo.json()["status"] == "error"
    assert trainer_port.refused == [Reason.HELD_BY_ANOTHER] * 3


# --- the listener -------------------------------------------------------------------------------


async def test_every_route_is_served_once(trainer_port: TrainerPort) -> None:
    assert len(trainer_port.routes) == len(set(trainer_port.routes))
    assert len(trainer_port.routes) > 50


async def test_an_unknown_route_is_answered_with_the_list_of_routes(
    trainer_port: TrainerPort,
) -> None:
    wrong = await trainer_port.client.get("/pause")
    unknown = await trainer_port.post("/engine/control/launch")

    assert (wrong.status_code, "use POST /pause" in wrong.text) == (405, True)
    assert unknown[0] == 404


async def test_bodies_are_bounded_and_never_repeated(trainer_port: TrainerPort) -> None:
    large = await trainer_port.client.post("/pause", content=b"x" * 70_000)
    tensors = await trainer_port.client.post("/update_weights", content=b" " * 70_000 + b"{}")
    too_many = await trainer_port.client.post("/update_weights", content=b" " * (17 << 20))
    secret = await trainer_port.post("/update_weight_version", new_version=["a-secret"])

    assert (large.status_code, tensors.status_code, too_many.status_code) == (413, 400, 413)
    assert secret[0] == 400
    assert "a-secret" not in str(secret[1])
