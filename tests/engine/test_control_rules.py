"""The rules of the admin port, on a real engine: state, pauses, updates, security, discovery."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.environments import REPOSITORY
from tests.support.trainer import Trainer
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, token_request

from fleet_worker.trainer.dynamo import Dynamo
from fleet_worker.trainer.prime_rl import PrimeRl
from fleet_worker.trainer.vllm import Vllm

NewVersion = Callable[[], str]
REFERENCE = REPOSITORY / "docs" / "reference"


@pytest.fixture
def trainer(driven: WorkerProcess) -> Iterator[Trainer]:
    with Trainer(driven) as made:
        yield made


def in_flight(worker: WorkerProcess, **sampling: Any) -> tuple[threading.Thread, list[Any]]:
    replies: list[Any] = []
    body = token_request([1, 2, 3], **{"max_tokens": 3000, **sampling})
    thread = threading.Thread(
        target=lambda: replies.append(
            worker.public.post("/inference/v1/generate", json=body).json()["choices"][0]
        )
    )
    thread.start()
    eventually(lambda: worker.state()["requests_running"] == 1)
    return thread, replies


def routes() -> list[tuple[str, str]]:
    """Method and path of everything that trainers may call."""
    nobody: Any = None
    vllm = Vllm(nobody, nobody)
    apis = [vllm, PrimeRl(nobody, vllm), Dynamo(nobody, vllm)]
    found = [route for each in apis for route in each.api().routes]
    return sorted({*found, ("POST", "/update_weights")})


# --- state --------------------------------------------------------------------------------------


def test_the_state_is_served_at_once_while_the_engine_does_not_answer(
    driven: WorkerProcess,
) -> None:
    (engine,) = driven.engine_pids()
    os.kill(engine, signal.SIGSTOP)
    try:
        began = time.monotonic()
        state = driven.state()
        seconds = time.monotonic() - began  # calls to the engine wait until it continues
    finally:
        os.kill(engine, signal.SIGCONT)

    assert seconds < 20
    assert state["phase"] == "serving"
    assert driven.greedy()


def test_an_unknown_version_is_not_reported(driven: WorkerProcess, trainer: Trainer) -> None:
    home = driven.state()["version"]
    trainer.must("/init_weight_transfer_engine", init_info={"world_size": 2})
    trainer.must("/start_weight_update")
    answers = trainer.must_get("/weight_info"), trainer.must("/engine/get_weight_version")
    trainer.post("/update_weights", update_info={"file": "/nowhere"})

    assert answers[0] == {"weight_version": None}
    assert (answers[1]["version"], answers[1]["version_declared"]) == (None, False)
    driven.must("admit", version=home)


# --- pausing ------------------------------------------------------------------------------------


def test_pause_modes_have_the_meaning_of_vllm(driven: WorkerProcess, trainer: Trainer) -> None:
    finished = {}
    for mode in ("keep", "wait", "abort"):
        # With "wait" the request must end within the lease, also on busy cores.
        thread, replies = in_flight(driven, max_tokens=500 if mode == "wait" else 3000)
        trainer.must(f"/pause?mode={mode}")
        if mode != "keep":
            thread.join(timeout=REPLY_SECONDS)  # it has ended, and its reply comes during the pause
        held = driven.state()["requests_held"]
        trainer.must("/resume")
        thread.join(timeout=REPLY_SECONDS)
        finished[mode] = (held, replies[0]["finish_reason"])
    assert finished == {"keep": (1, "length"), "wait": (0, "length"), "abort": (0, "abort")}

    thread, replies = in_flight(driven)
    trainer.must("/pause")
    thread.join(timeout=REPLY_SECONDS)
    assert replies[0]["finish_reason"] == "abort"


def test_a_pause_that_waits_answers_when_no_request_runs(
    driven: WorkerProcess, trainer: Trainer
) -> None:
    thread, replies = in_flight(driven, max_tokens=500)  # they end within the lease
    reply = trainer.must("/pause?mode=wait")

    assert reply == {"status": "paused", "inflight_requests": 0}
    thread.join(timeout=REPLY_SECONDS)
    assert len(replies[0]["token_ids"]) == 500


# --- updates ------------------------------------------------------------------------------------


def test_a_failure_of_the_engine_reaches_the_trainer_and_the_worker_stays_paused(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    home, before = driven.state()["version"], driven.greedy()
    overflowing = copy_of(weights.b, weights.root / new_version() / "step_9")
    damage.make_overflow(overflowing)
    trainer.must("/pause?mode=keep")
    failed = trainer.post("/update_weights", weight_dir=str(overflowing))
    again = trainer.post("/update_weights", weight_dir=str(overflowing))
    resumed = trainer.post("/resume")

    assert (failed.status_code, failed.json()["error"]["type"]) == (500, "ProbeFailed")
    assert (again.status_code, resumed.status_code) == (409, 409)
    assert resumed.json()["error"]["type"] == "Broken"
    assert not driven.is_ready()
    driven.must("admit", version=home)
    assert driven.greedy() == before


def test_no_cached_prefix_outlives_the_weights_that_computed_it(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    prompt = list(range(5, 300))
    folder = copy_of(weights.b, weights.root / new_version() / "step_3")
    driven.greedy(prompt)
    trainer.must("/update_weights", weight_dir=str(folder))
    first = driven.greedy(prompt)
    trainer.must("/pause?mode=keep")
    dropped = trainer.must("/reset_prefix_cache")
    trainer.must("/resume")

    assert dropped == {"success": True}
    assert driven.greedy(prompt) == first


def test_metrics_survive_an_update(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    loads = driven.metric("rlfleet_worker_load_seconds_count")
    folder = copy_of(weights.b, weights.root / new_version() / "step_4")
    trainer.must("/update_weights", weight_dir=str(folder))

    assert driven.metric("rlfleet_worker_load_seconds_count") == loads + 1
    assert driven.metric("rlfleet_worker_version_info", version="4") == 1
    text = trainer.get("/metrics").text
    for name in ("vllm:num_requests_running", "vllm:prefix_cache_queries_total"):
        assert name in text


def test_every_route_is_documented() -> None:
    pages = (REFERENCE / "control.md").read_text() + (REFERENCE / "worker.md").read_text()
    named = set(re.findall(r"/[a-z0-9_/]+[a-z0-9_]", pages))
    for folder in ("control", "update"):
        row = next(line for line in pages.splitlines() if line.startswith(f"| `/engine/{folder}/"))
        named |= {f"/engine/{folder}/{name}" for name in re.findall(r"`([a-z_]+)`", row)}
    flat = next(line for line in pages.splitlines() if line.startswith("| `/engine/…` |"))
    named |= {f"/engine/{name}" for name in re.findall(r"`([a-z_]+)`", flat)}

    assert [path for _, path in routes() if path not in named] == []


# --- security -----------------------------------------------------------------------------------


def test_the_admin_port_listens_on_loopback_by_default(
    driven: WorkerProcess,
) -> None:
    with socket.create_connection(("127.0.0.1", driven.admin_port), timeout=5):
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", driven.admin_port), timeout=5)


def test_headers_of_a_trainer_are_accepted(driven: WorkerProcess) -> None:
    headers = {"X-Session-ID": "1", "X-data-parallel-rank": "0", "X-Cluster": "a", "Via": "1.1 x"}

    assert driven.admin.get("/v1/models", headers=headers).status_code == 200
    assert driven.admin.get("/v1/worker/state", headers=headers).status_code == 200


# --- discovery ----------------------------------------------------------------------------------


def test_health_and_models_are_served_at_the_routes_that_trainers_use(
    driven: WorkerProcess, trainer: Trainer
) -> None:
    trainer.must("/pause?mode=keep")
    paused = trainer.get("/health").status_code
    trainer.must("/resume")
    driven.must("fence", reason="a test")
    closed = trainer.get("/health").status_code
    driven.must("admit", version=driven.state()["version"])

    assert (paused, closed, trainer.get("/health").status_code) == (200, 503, 200)
    assert trainer.must_get("/v1/models")["data"][0]["id"] == "policy"
    assert trainer.must_get("/liveness") == {"status": "ok"}
