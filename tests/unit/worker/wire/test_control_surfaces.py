"""The control surfaces of the admin port: paths, bodies, answers, and who may ask."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.fake_engine import touched, untouched
from tests.support.tiny import write_tiny
from tests.unit.worker.conftest import Bench
from tests.unit.worker.wire.control_port import Port

from fleet_worker.protocol import Management, Phase, Reason
from fleet_worker.runtime.transferring import TransferRoom


@pytest.fixture
async def port(serving: Bench, tmp_path: Path) -> AsyncIterator[Port]:
    made = Port(serving, tmp_path)
    yield made
    await made.client.aclose()


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


# --- who may ask --------------------------------------------------------------------------------


async def test_no_route_of_any_surface_is_open_to_strangers(port: Port) -> None:
    async with port.client_at("10.0.0.9", token=None) as stranger:
        for method, path in port.routes:
            reply = await stranger.request(method, path, json={})
            assert reply.status_code == 401, path
    async with port.client_at("10.0.0.9", token="wrong") as stranger:
        for method, path in port.routes:
            assert (await stranger.request(method, path, json={})).status_code == 401, path
    assert port.bench.engine.calls == []
    assert port.bench.state.phase is Phase.SERVING


async def test_the_token_may_stand_in_the_path(
    port: Port, caplog: pytest.LogCaptureFixture
) -> None:
    async with port.client_at("10.0.0.9", token=None) as plain:
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


async def test_a_wrong_token_in_the_path_is_not_saved_by_a_right_header(port: Port) -> None:
    assert (await port.client.get("/t/wrong/is_paused")).status_code == 401


async def test_where_the_operator_brings_the_weights_every_route_that_changes_something_is_shut(
    serving: Bench, tmp_path: Path
) -> None:
    port = Port(serving, tmp_path, management=Management.OPERATOR)
    bodies: dict[str, Any] = {
        "new_version": "1",
        "weight_version": "1",
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
    for method, path in port.routes:
        if path.startswith("/v1/worker") or (method, path) in readers():
            continue
        if path == "/engine/update_weights_from_tensor":
            continue  # it exists nowhere
        if path == "/engine/update_weights_from_distributed":
            bodies = {**bodies, "engine_rpc": "start_weight_update"}
        body = {**updates, "update_info": {}} if path == "/engine/update/update_weights" else bodies
        reply = await port.client.request(method, path, json=body)
        text = reply.text
        assert "WeightVersion" in text, (path, text)
        assert reply.status_code in (200, 400, 409), path
        assert reply.status_code != 200 or reply.json()["status"] == "error", path
        shut += 1
    assert shut > 30
    assert serving.engine.calls == []
    await port.client.aclose()


async def test_reading_is_open_to_trainers_whoever_brings_the_weights(
    serving: Bench, tmp_path: Path
) -> None:
    port = Port(serving, tmp_path, management=Management.OPERATOR)
    for method, path in sorted(readers()):
        reply = await port.client.request(method, path, json={})
        assert reply.status_code == 200, path
    await port.client.aclose()


async def test_a_second_driver_gets_409_with_the_holder_and_the_time_left(port: Port) -> None:
    await port.post("/pause?mode=keep")
    async with port.client_at("10.0.0.2") as second:
        reply = await second.post("/pause?mode=keep")
        update = await second.post("/update_weights", json={"weight_dir": port.step(1)})
        dynamo = await second.post("/engine/resume_generation", json={})

    assert reply.status_code == update.status_code == 409
    error = reply.json()["error"]
    assert (error["type"], "10.0.0.1" in error["message"]) == ("HeldByAnother", True)
    assert int(reply.headers["retry-after"]) == 60
    assert dynamo.json()["status"] == "error"
    assert port.refused == [Reason.HELD_BY_ANOTHER] * 3


# --- prime-rl -----------------------------------------------------------------------------------


async def test_prime_rls_sequence(port: Port) -> None:
    assert await port.post("/pause?mode=keep&clear_cache=false") == (
        200,
        {"status": "paused", "inflight_requests": 0},
    )
    status, reply = await port.post("/update_weights", weight_dir=port.step(41))
    assert (status, reply) == (200, {"status": "ok", "weight_version": "41"})
    assert await port.post("/resume") == (200, {"status": "resumed"})
    assert port.bench.state.version == "41"
    assert port.bench.engine.calls[0] == "pause keep and keep"


@pytest.mark.parametrize("weight_dir", ["", None])
async def test_no_directory_is_refused(port: Port, weight_dir: str | None) -> None:
    status, reply = await port.post("/update_weights", weight_dir=weight_dir)

    assert (status, reply["error"]["type"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body", [{}, {"weight_dir": "/a", "update_info": {}}, {"something": 1}], ids=str
)
async def test_an_update_must_say_which_kind_it_is(port: Port, body: dict[str, Any]) -> None:
    assert (await port.post("/update_weights", **body))[0] == 400
    reply = await port.client.post("/update_weights", content=b"[]")
    assert reply.status_code == 400


async def test_what_prime_rl_cannot_have_is_a_clear_4xx(port: Port) -> None:
    status, reply = await port.post(
        "/init_broadcaster", host="h", port=1, rank_offset=0, inference_world_size=1
    )

    assert (status, reply["error"]["type"]) == (409, "NotAvailable")


async def test_prime_rls_ranks_are_counted_from_its_trainer(serving: Bench, tmp_path: Path) -> None:
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    body = {"host": "trainer", "port": 29501, "rank_offset": 2, "inference_world_size": 4}
    assert (await port.post("/init_broadcaster", **body, timeout=1200))[0] == 200

    expected = {
        "master_address": "trainer",
        "master_port": 29501,
        "rank_offset": 3,
        "world_size": 5,
    }
    assert serving.engine.calls == [f"join_transfer {expected}"]
    await port.client.aclose()


async def test_adapters_by_prime_rls_route(port: Port) -> None:
    port.bench.agent.adapters._slots = 2
    port.bench.agent.adapters.max_rank = 8
    for number in (1, 2):
        path = port.bench.root / "lora" / f"step_{number}"
        missing = await port.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert missing[0] == 404  # its client comes again: the file system may be slow
        write_adapter(path, seed=number, modules=TINY_MODULES, rank=2)
        reply = await port.post("/load_lora_adapter", lora_name="r", lora_path=str(path))
        assert reply == (200, {"status": "ok"})
        assert port.bench.state.adapters[0].version == str(number)
    assert (await port.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert (await port.post("/v1/unload_lora_adapter", lora_name="r"))[0] == 200
    assert port.bench.state.adapters == ()
    port.bench.agent.adapters.close()


async def test_the_same_number_with_other_adapter_files_is_refused(port: Port) -> None:
    port.bench.agent.adapters._slots = 2
    port.bench.agent.adapters.max_rank = 8
    path = port.bench.root / "lora" / "step_1"
    write_adapter(path, seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "lora_path": str(path)}
    assert (await port.post("/load_lora_adapter", **body))[0] == 200
    assert (await port.post("/load_lora_adapter", **body))[0] == 200
    write_adapter(path, seed=2, modules=TINY_MODULES, rank=2)

    status, reply = await port.post("/load_lora_adapter", **body)
    assert (status, reply["error"]["type"]) == (409, "VersionReused")
    await port.post("/v1/unload_lora_adapter", lora_name="r")


async def test_liveness_is_a_round_trip_to_the_engine(port: Port) -> None:
    assert await port.get("/liveness") == (200, {"status": "ok"})
    assert port.bench.engine.calls == ["ping"]
    port.bench.engine.failures["ping"] = [untouched()]
    assert await port.get("/liveness") == (503, {"status": "engine_unresponsive"})


async def test_a_trainer_waits_until_the_worker_is_admitted(joining: Bench, tmp_path: Path) -> None:
    port = Port(joining, tmp_path)
    assert (await port.get("/health"))[0] == 503
    await joining.admit("base")
    assert (await port.get("/health"))[0] == 200
    await joining.pause()
    assert (await port.get("/health"))[0] == 200
    joining.engine.is_dead = True
    assert (await port.get("/health"))[0] == 503
    await port.client.aclose()


async def test_models_and_metrics_are_asked_on_the_admin_port(port: Port) -> None:
    status, models = await port.get("/v1/models")
    assert (status, models["data"][0]["id"], models["data"][0]["max_model_len"]) == (
        200,
        "fake",
        16,
    )
    metrics = await port.client.get("/metrics")
    assert metrics.headers["content-type"].startswith("text/plain")
    assert "rlfleet_worker_admitted 1.0" in metrics.text


# --- vLLM's RL routes ---------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["", "KEEP", "Keep", "drop", "keep "])
async def test_a_mode_is_one_of_three_words(port: Port, mode: str) -> None:
    assert (await port.client.post("/pause", params={"mode": mode})).status_code == 400
    assert (await port.post("/engine/pause_generation", mode=mode))[1]["status"] == "error"
    assert port.bench.engine.calls == []


async def test_the_default_mode_is_vllms(port: Port) -> None:
    await port.client.post("/pause")

    assert port.bench.engine.calls == ["pause abort"]


async def test_a_wait_answers_when_nothing_runs_any_more(port: Port) -> None:
    status, reply = await port.post("/pause?mode=wait")

    assert (status, reply) == (200, {"status": "paused", "inflight_requests": 0})
    assert await port.get("/is_paused") == (200, {"is_paused": True})


async def test_nemo_rls_sequence(port: Port) -> None:
    folder = write_tiny(port.bench.root / "refit")
    await port.post("/pause?mode=keep&clear_cache=true")
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}, "timeout": 1800}
    assert await port.post("/collective_rpc", **rpc) == (200, {"results": [None]})
    assert await port.post("/reset_prefix_cache") == (200, {"success": True})
    assert (await port.post("/resume"))[0] == 200
    assert str(port.bench.state.version).startswith("refit-")


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
    port: Port, rpc: dict[str, Any]
) -> None:
    status, _ = await port.post("/collective_rpc", **rpc)

    assert status in (400, 422)
    assert port.bench.engine.calls == []


async def test_trls_sequence(serving: Bench, tmp_path: Path) -> None:
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    assert await port.get("/get_world_size") == (200, {"world_size": 1})
    info = await port.get("/server_info?config_format=json")
    assert info[1]["vllm_config"]["model_config"]["dtype"] == "torch.bfloat16"
    assert (await port.post("/init_weight_transfer_engine", init_info={"world_size": 2}))[0] == 200
    assert (await port.post("/start_weight_update"))[0] == 200
    assert (await port.post("/update_weights", update_info={"names": ["a"]}))[0] == 200
    status, reply = await port.post("/finish_weight_update", weight_version="9")
    assert (status, reply["weight_version"]) == (200, "9")
    assert await port.get("/weight_info") == (200, {"weight_version": "9"})
    assert (await port.post("/resume"))[0] == 200
    assert serving.state.phase is Phase.SERVING
    await port.client.aclose()


async def test_a_label_without_weights_is_refused(port: Port) -> None:
    status, reply = await port.post("/update_weight_version", new_version="41")

    assert (status, reply["error"]["type"]) == (409, "VersionMismatch")
    assert await port.post("/update_weight_version", new_version="base") == (
        200,
        {"success": True, "new_version": "base"},
    )


async def test_sleep_and_wake(port: Port) -> None:
    assert (await port.client.post("/sleep?level=1")).json() == {"status": "asleep"}
    assert await port.get("/is_sleeping") == (200, {"is_sleeping": True})
    reply = await port.client.post("/wake_up?tags=weights&tags=kv_cache")
    assert reply.json() == {"status": "awake"}
    assert "wake ['weights', 'kv_cache']" in port.bench.engine.calls
    assert (await port.client.post("/sleep?level=2")).status_code == 409
    assert (await port.client.post("/sleep?level=x")).status_code == 400


async def test_requests_are_aborted_by_name_or_all_of_them(port: Port) -> None:
    assert await port.post("/abort_requests", request_ids=["a", "b"]) == (
        200,
        {"status": "aborted", "aborted": 2},
    )
    await port.post("/abort_requests")
    await port.post("/engine/abort_request", request_id="c")
    assert port.bench.engine.calls == ["abort ['a', 'b']", "abort None", "abort ['c']"]


async def test_a_failure_of_the_engine_is_5xx_and_a_broken_worker_does_not_resume(
    port: Port,
) -> None:
    await port.post("/pause?mode=keep")
    port.bench.engine.failures["probe"] = [touched(Reason.PROBE_FAILED)]
    path = port.step(5)
    status, reply = await port.post("/update_weights", weight_dir=path)
    assert (status, reply["error"]["type"]) == (500, "ProbeFailed")
    assert (await port.post("/update_weights", weight_dir=path))[0] == 409
    status, reply = await port.post("/resume")
    assert (status, reply["error"]["type"]) == (409, "Broken")


# --- Dynamo's engine routes ---------------------------------------------------------------------


async def test_dynamos_native_sequence(port: Port) -> None:
    status, reply = await port.post(
        "/engine/control/pause_generation", mode="keep", clear_cache=False
    )
    assert (status, reply["status"], reply["mode"]) == (200, "ok", "keep")
    assert await port.post("/engine/control/is_paused") == (200, {"is_paused": True})
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": port.step(41)}, "args": []}
    assert (await port.post("/collective_rpc", **rpc))[1] == {"results": [None]}
    named = await port.post("/engine/update/update_weight_version", new_version="41")
    assert named[1]["status"] == "ok"
    told = await port.post("/engine/control/get_weight_version")
    assert told == (200, {"weight_version": "41"})
    assert (await port.post("/engine/control/resume_generation"))[1]["status"] == "ok"


async def test_dynamos_flat_sequence(port: Port) -> None:
    path = port.step(12)
    early = await port.post("/engine/update_weights_from_disk", model_path=path)
    assert (early[0], early[1]["status"]) == (200, "error")
    await port.post("/engine/pause_generation")
    reply = await port.post(
        "/engine/update_weights_from_disk", model_path=path, weight_version="step_12"
    )
    assert reply == (
        200,
        {"status": "ok", "message": "loaded", "version": "step_12", "version_declared": True},
    )
    assert (await port.post("/engine/get_weight_version"))[1]["version"] == "step_12"
    assert (await port.post("/engine/resume_generation"))[1]["status"] == "ok"
    assert (await port.post("/engine/flush_cache"))[1]["status"] == "ok"
    assert (await port.post("/engine/liveness_probe"))[1] == {"status": "ok", "alive": True}


async def test_dynamos_errors_are_answers_and_failures_are_not(port: Port) -> None:
    await port.post("/engine/pause_generation")
    status, reply = await port.post("/engine/update_weights_from_disk", model_path="/nowhere")
    assert (status, reply["status"], reply["reason"]) == (200, "error", "SourceOutsideRoots")
    status, reply = await port.post("/engine/update_weights_from_tensor")
    assert (status, reply["status"]) == (200, "error")
    port.bench.engine.failures["probe"] = [touched()]
    status, reply = await port.post("/engine/update_weights_from_disk", model_path=port.step(1))
    assert (status, reply["status"]) == (500, "error")


async def test_dynamos_distributed_steps(serving: Bench, tmp_path: Path) -> None:
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    group = {"host": "t", "port": 1, "rank_offset": 0, "inference_world_size": 1}
    assert (await port.post("/engine/init_weights_update_group", **group))[1]["status"] == "ok"

    async def take(step: str, **more: Any) -> dict[str, Any]:
        body = {"engine_rpc": step, "allow_unpaused": True, "reset_prefix_cache": False, **more}
        return (await port.post("/engine/update_weights_from_distributed", **body))[1]

    mixed = {"engine_rpc": "start_weight_update", "allow_unpaused": True}
    refused = await port.post("/engine/update_weights_from_distributed", **mixed)
    assert refused[1]["status"] == "error"
    unpaused = {"engine_rpc": "start_weight_update"}
    refused = await port.post("/engine/update_weights_from_distributed", **unpaused)
    assert "pause" in refused[1]["message"]
    assert (await take("start_weight_update"))["status"] == "ok"
    assert (await take("update_weights", update_info={"names": []}))["status"] == "ok"
    assert (await take("finish_weight_update", weight_version="3"))["version"] == "3"
    assert (await take("update_weights_from_path"))["status"] == "error"
    await port.client.aclose()


@pytest.mark.parametrize("path", ["/engine/load_lora", "/engine/update/load_lora", "/v1/loras"])
async def test_dynamos_adapters(port: Port, path: str) -> None:
    port.bench.agent.adapters._slots = 2
    port.bench.agent.adapters.max_rank = 8
    folder = write_adapter(port.bench.root / "a b", seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "source": {"uri": f"file://{str(folder).replace(' ', '%20')}"}}
    status, reply = await port.post(path, **body)

    assert (status, reply["status"], reply["lora_name"]) == (200, "success", "r")
    assert reply["lora_id"] > 0
    other = {"lora_name": "r", "source": {"uri": "s3://bucket/x"}}
    assert (await port.post(path, **other))[1]["status"] == "error"
    assert (await port.post("/engine/unload_lora", lora_name="r"))[1]["status"] == "success"


# --- AReaL --------------------------------------------------------------------------------------


async def test_areals_sequence(port: Port) -> None:
    assert (await port.post("/areal_pause_generation"))[1]["success"] is True
    status, reply = await port.post("/areal_update_weights", model_path=port.step(3))
    assert (status, reply["success"]) == (200, True)
    assert (await port.post("/areal_continue_generation"))[1]["success"] is True
    assert port.bench.engine.calls[0] == "pause abort"
    assert port.bench.state.version == "3"


async def test_areal_is_told_of_refusals_by_400(port: Port) -> None:
    status, reply = await port.post("/areal_update_weights", model_path="/nowhere")

    assert (status, reply["success"]) == (400, False)
    assert "root" in reply["message"]


# --- the listener -------------------------------------------------------------------------------


async def test_every_route_is_served_once(port: Port) -> None:
    assert len(port.routes) == len(set(port.routes))
    assert len(port.routes) > 50


async def test_what_is_not_served_is_told_with_what_is(port: Port) -> None:
    wrong = await port.client.get("/pause")
    unknown = await port.post("/engine/control/launch")

    assert (wrong.status_code, "use POST /pause" in wrong.text) == (405, True)
    assert unknown[0] == 404


async def test_bodies_are_bounded_and_never_repeated(port: Port) -> None:
    large = await port.client.post("/pause", content=b"x" * 70_000)
    tensors = await port.client.post("/update_weights", content=b" " * 70_000 + b"{}")
    too_many = await port.client.post("/update_weights", content=b" " * (17 << 20))
    secret = await port.post("/update_weight_version", new_version=["a-secret"])

    assert (large.status_code, tensors.status_code, too_many.status_code) == (413, 400, 413)
    assert secret[0] == 400
    assert "a-secret" not in str(secret[1])


# --- what several surfaces say in their own words -----------------------------------------------


async def test_a_cache_that_requests_hold_is_not_dropped_unless_they_are_stopped(
    port: Port,
) -> None:
    port.bench.engine.running = 2
    by_vllm = await port.post("/reset_prefix_cache")
    by_dynamo = await port.post("/engine/flush_cache")
    forced = [
        (await port.client.post("/reset_prefix_cache?reset_running_requests=true")).json(),
        (await port.post("/reset_prefix_cache", reset_running_requests=True))[1],
    ]
    port.bench.engine.running = 0

    assert by_vllm == (200, {"success": False})
    assert (by_dynamo[0], by_dynamo[1]["status"], by_dynamo[1]["reason"]) == (
        200,
        "error",
        "WrongPhase",
    )
    assert forced == [{"success": True}] * 2
    assert (await port.post("/reset_prefix_cache"))[1] == {"success": True}
    assert (await port.post("/engine/control/flush_cache"))[1]["status"] == "ok"


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
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    assert (await port.post(path, **body))[0] == 200
    assert f"join_transfer {JOINED}" in serving.engine.calls
    await port.client.aclose()


@pytest.mark.parametrize("missing", ["host", "port", "inference_world_size"])
async def test_a_group_that_is_not_described_is_not_joined(
    serving: Bench, tmp_path: Path, missing: str
) -> None:
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    body = {key: value for key, value in GROUP.items() if key != missing}
    dynamo = await port.post("/engine/init_weights_update_group", **body)
    prime = await port.post("/init_broadcaster", **body)
    await port.client.aclose()

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
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    await port.post("/init_weight_transfer_engine", init_info=JOINED)
    assert (await port.post(path))[0] == 200
    assert serving.engine.calls[-1] == "leave_transfer"
    await port.client.aclose()


async def test_dynamos_files_are_loaded_by_one_method_and_only_while_paused(port: Port) -> None:
    path = port.step(12)
    await port.post("/engine/pause_generation")
    body = {"model_path": path, "engine_rpc": "load_pickle"}
    status, reply = await port.post("/engine/update_weights_from_disk", **body)

    assert (status, reply["status"], reply["reason"]) == (200, "error", "BadRequest")
    assert not [call for call in port.bench.engine.calls if call.startswith("load")]
    assert port.bench.state.version == "base"


async def test_tensors_that_come_without_saying_which_are_refused(
    serving: Bench, tmp_path: Path
) -> None:
    port = Port(serving, tmp_path, room=TransferRoom("own"))
    await port.post("/init_weight_transfer_engine", init_info=JOINED)
    await port.post("/start_weight_update")
    status, reply = await port.post("/engine/update/update_weights")
    await port.client.aclose()

    assert (status, reply["status"]) == (200, "error")
    assert "update_info" in reply["message"]
    assert "receive" not in serving.engine.calls


@pytest.mark.parametrize(
    "path", ["/engine/set_weight_version", "/engine/update/update_weight_version"]
)
@pytest.mark.parametrize("body", [{}, {"weight_version": ""}, {"new_version": None}])
async def test_a_label_has_to_be_named(port: Port, path: str, body: dict[str, Any]) -> None:
    status, reply = await port.post(path, **body)

    assert (status, reply["status"], reply["message"]) == (200, "error", "no version is named")
    assert port.bench.state.version == "base"
