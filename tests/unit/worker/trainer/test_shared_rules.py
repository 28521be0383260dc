"""Rules that all dialects of trainers share, each in its own format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.adapters import TINY_MODULES, write_adapter
from tests.support.admin_ports import TrainerPort
from tests.support.worker_harness import WorkerHarness

from fleet_worker.protocol import Reason
from fleet_worker.trainer.transfers import TransferRoom


async def test_a_cache_with_running_requests_is_dropped_only_if_they_are_stopped(
    trainer_port: TrainerPort,
) -> None:
    trainer_port.harness.engine.running = 2
    by_vllm = await trainer_port.post("/reset_prefix_cache")
    by_dynamo = await trainer_port.post("/engine/flush_cache")
    forced = [
        (await trainer_port.client.post("/reset_prefix_cache?reset_running_requests=true")).json(),
        (await trainer_port.post("/reset_prefix_cache", reset_running_requests=True))[1],
    ]
    trainer_port.harness.engine.running = 0

    assert by_vllm == (200, {"success": False})
    assert (by_dynamo[0], by_dynamo[1]["status"], by_dynamo[1]["reason"]) == (
        200,
        "error",
        "WrongPhase",
    )
    assert forced == [{"success": True}] * 2
    assert (await trainer_port.post("/reset_prefix_cache"))[1] == {"success": True}
    assert (await trainer_port.post("/engine/control/flush_cache"))[1]["status"] == "ok"


GROUP = {"host": "trainer", "port": 29500, "rank_offset": 4, "inference_world_size": 8}
JOINED = {"master_address": "trainer", "master_port": 29500, "rank_offset": 5, "world_size": 9}


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
async def test_every_dialect_joins_the_same_group(
    transfer_port: TrainerPort, serving: WorkerHarness, path: str, body: dict[str, Any]
) -> None:
    """The trainer is rank 0, so the first process of this engine has the given offset plus one."""
    assert (await transfer_port.post(path, **body))[0] == 200
    assert f"join_transfer {JOINED}" in serving.engine.calls


UPDATES = {
    "vLLM and NeMo-RL": [
        ("/pause?mode=keep", {}),
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "STEP"}}),
    ],
    "prime-rl": [("/pause?mode=keep", {}), ("/update_weights", {"weight_dir": "STEP"})],
    "Dynamo": [
        ("/engine/pause_generation", {}),
        ("/engine/update_weights_from_disk", {"model_path": "STEP"}),
    ],
    "a collective": [
        ("/init_weight_transfer_engine", {"init_info": JOINED}),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"names": []}}),
        ("/finish_weight_update", {"weight_version": "41"}),
    ],
    "a collective, by Dynamo": [
        ("/engine/init_weights_update_group", GROUP),
        ("/engine/pause_generation", {}),
        *(
            ("/engine/update_weights_from_distributed", {"engine_rpc": step} | more)
            for step, more in (
                ("start_weight_update", {}),
                ("update_weights", {"update_info": {"names": []}}),
                ("finish_weight_update", {"weight_version": "41"}),
            )
        ),
    ],
}


@pytest.mark.parametrize("given", [pytest.param(u, id=name) for name, u in UPDATES.items()])
async def test_the_state_tells_loaded_weights_from_those_of_the_start(
    joining: WorkerHarness, tmp_path: Path, given: list[tuple[str, dict[str, Any]]]
) -> None:
    """The operator admits workers at weights that a trainer has sent to all of them. A version on which
    they have only started may be an old one.
    """
    trainer_port = TrainerPort(joining, tmp_path, room=TransferRoom("own"))
    before = joining.state
    for path, body in given:
        filled = {k: trainer_port.step(41) if v == "STEP" else v for k, v in body.items()}
        if "kwargs" in filled:
            filled["kwargs"] = {"weights_path": trainer_port.step(41)}
        status, reply = await trainer_port.post(path, **filled)
        assert status == 200, reply
        assert reply.get("status") != "error", reply
    await trainer_port.client.aclose()

    assert (before.version, before.effect) == ("base", None)
    assert joining.state.version == "41"
    assert joining.state.effect is not None


@pytest.mark.parametrize("missing", ["host", "port", "inference_world_size"])
async def test_an_incomplete_description_of_a_group_is_refused(
    transfer_port: TrainerPort, serving: WorkerHarness, missing: str
) -> None:
    body = {key: value for key, value in GROUP.items() if key != missing}
    dynamo = await transfer_port.post("/engine/init_weights_update_group", **body)
    prime = await transfer_port.post("/init_broadcaster", **body)

    assert (dynamo[0], dynamo[1]["status"]) == (200, "error")
    assert prime[0] == 400
    assert missing in dynamo[1]["message"]
    assert missing in prime[1]["error"]["message"]
    assert serving.engine.calls == []


@pytest.mark.parametrize(
    "path", ["/shutdown_weight_transfer_engine", "/engine/destroy_weights_update_group"]
)
async def test_a_joined_group_can_be_left(
    transfer_port: TrainerPort, serving: WorkerHarness, path: str
) -> None:
    await transfer_port.post("/init_weight_transfer_engine", init_info=JOINED)
    assert (await transfer_port.post(path))[0] == 200
    assert serving.engine.calls[-1] == "leave_transfer"


async def test_files_over_dynamo_are_loaded_by_one_method_and_only_while_paused(
    trainer_port: TrainerPort,
) -> None:
    path = trainer_port.step(12)
    await trainer_port.post("/engine/pause_generation")
    body = {"model_path": path, "engine_rpc": "load_pickle"}
    status, reply = await trainer_port.post("/engine/update_weights_from_disk", **body)

    assert (status, reply["status"], reply["reason"]) == (200, "error", "BadRequest")
    assert not [call for call in trainer_port.harness.engine.calls if call.startswith("load")]
    assert trainer_port.harness.state.version == "base"


async def test_tensors_without_names_are_refused(
    transfer_port: TrainerPort, serving: WorkerHarness
) -> None:
    await transfer_port.post("/init_weight_transfer_engine", init_info=JOINED)
    await transfer_port.post("/start_weight_update")
    status, reply = await transfer_port.post("/engine/update/update_weights")

    assert (status, reply["status"]) == (200, "error")
    assert "update_info" in reply["message"]
    assert "receive" not in serving.engine.calls


@pytest.mark.parametrize(
    "path", ["/engine/set_weight_version", "/engine/update/update_weight_version"]
)
@pytest.mark.parametrize("body", [{}, {"weight_version": ""}, {"new_version": None}])
async def test_a_label_must_be_named(
    trainer_port: TrainerPort, path: str, body: dict[str, Any]
) -> None:
    status, reply = await trainer_port.post(path, **body)

    assert (status, reply["status"], reply["message"]) == (200, "error", "no version is named")
    assert trainer_port.harness.state.version == "base"


LOADS = [
    pytest.param(
        "/update_weights", lambda path, names: {"weight_dir": path} | names, id="prime-rl"
    ),
    pytest.param(
        "/collective_rpc",
        lambda path, names: {"method": "reload_weights", "kwargs": {"weights_path": path} | names},
        id="vLLM",
    ),
    pytest.param(
        "/engine/update_weights_from_disk",
        lambda path, names: {"model_path": path} | names,
        id="Dynamo",
    ),
]
Body = Callable[[str, dict[str, str]], dict[str, Any]]


@pytest.mark.parametrize("spelling", ["version", "weight_version", "weightVersion"])
@pytest.mark.parametrize(("route", "body"), LOADS)
async def test_every_dialect_loads_a_directory_under_the_version_that_is_sent(
    trainer_port: TrainerPort, route: str, body: Body, spelling: str
) -> None:
    await trainer_port.post("/pause")
    reply = await trainer_port.post(route, **body(trainer_port.step(50), {spelling: "51"}))

    assert reply[0] == 200
    assert trainer_port.harness.state.version == "51"


@pytest.mark.parametrize("name", ["run_id", "runID", "digest", "weight_digest"])
@pytest.mark.parametrize(("route", "body"), LOADS)
async def test_every_dialect_refuses_names_that_a_worker_cannot_give_to_a_trainers_directory(
    trainer_port: TrainerPort, route: str, body: Body, name: str
) -> None:
    await trainer_port.post("/pause")
    calls = list(trainer_port.harness.engine.calls)
    await trainer_port.post(route, **body(trainer_port.step(50), {name: "run-8"}))

    assert trainer_port.refused == [Reason.BAD_REQUEST]
    assert trainer_port.harness.engine.calls == calls


async def test_names_next_to_the_arguments_of_a_call_are_refused(trainer_port: TrainerPort) -> None:
    rpc = {"method": "reload_weights", "kwargs": {"weights_path": trainer_port.step(50)}}
    status, reply = await trainer_port.post("/collective_rpc", **rpc, version="51")

    assert (status, reply["error"]["type"]) == (400, "BadRequest")


async def test_an_adapter_gets_the_version_that_is_sent(trainer_port: TrainerPort) -> None:
    trainer_port.take_adapters()
    path = trainer_port.harness.root / "lora" / "step_50"
    write_adapter(path, seed=1, modules=TINY_MODULES, rank=2)
    body = {"lora_name": "r", "lora_path": str(path)}

    assert (await trainer_port.post("/v1/load_lora_adapter", **body, run_id="run-8"))[0] == 400
    assert (await trainer_port.post("/v1/load_lora_adapter", **body, version="51"))[0] == 200
    assert [each.version for each in trainer_port.harness.state.adapters] == ["51"]
    await trainer_port.post("/v1/unload_lora_adapter", lora_name="r")
    trainer_port.harness.agent.adapters.close()
