"""prime-rl's routes: paths, bodies and answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.support.admin_ports import TrainerPort
from tests.support.fake_engine import untouched
from tests.support.worker_harness import WorkerHarness


@pytest.mark.parametrize("weight_dir", ["", None])
async def test_a_missing_directory_is_refused(
    trainer_port: TrainerPort, weight_dir: str | None
) -> None:
    status, reply = await trainer_port.post("/update_weights", weight_dir=weight_dir)

    assert (status, reply["error"]["type"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    "body", [{}, {"weight_dir": "/a", "update_info": {}}, {"something": 1}], ids=str
)
async def test_an_update_must_name_its_kind(
    trainer_port: TrainerPort, body: dict[str, Any]
) -> None:
    assert (await trainer_port.post("/update_weights", **body))[0] == 400
    reply = await trainer_port.client.post("/update_weights", content=b"[]")
    assert reply.status_code == 400


async def test_an_unavailable_broadcaster_is_a_409_with_its_reason(
    trainer_port: TrainerPort,
) -> None:
    status, reply = await trainer_port.post(
        "/init_broadcaster", host="h", port=1, rank_offset=0, inference_world_size=1
    )

    assert (status, reply["error"]["type"]) == (409, "NotAvailable")


async def test_the_liveness_route_calls_the_engine(trainer_port: TrainerPort) -> None:
    assert await trainer_port.get("/liveness") == (200, {"status": "ok"})
    assert trainer_port.harness.engine.calls == ["ping"]
    trainer_port.harness.engine.failures["ping"] = [untouched()]
    assert await trainer_port.get("/liveness") == (503, {"status": "engine_unresponsive"})


async def test_a_trainer_waits_until_the_worker_is_admitted(
    joining: WorkerHarness, tmp_path: Path
) -> None:
    trainer_port = TrainerPort(joining, tmp_path)
    assert (await trainer_port.get("/health"))[0] == 503
    await joining.admit("base")
    assert (await trainer_port.get("/health"))[0] == 200
    await joining.pause()
    assert (await trainer_port.get("/health"))[0] == 200
    joining.engine.is_dead = True
    assert (await trainer_port.get("/health"))[0] == 503
    await trainer_port.client.aclose()
