"""The rules of the admin port, on a real engine: state, pauses, updates, security, discovery."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.adapters import write_adapter
from tests.support.checkpoints import copy_of
from tests.support.environments import REPOSITORY
from tests.support.trainer import Trainer
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, TOKEN, WorkerProcess, token_request

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


def test_one_document_has_the_whole_state_of_a_worker(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    home = driven.state()["version"]
    driven.stage(staged := new_version(), weights.b)
    thread, _ = in_flight(driven)
    serving = driven.state()
    trainer.must("/pause?mode=keep")
    paused = driven.state()
    trainer.must("/resume")
    thread.join(timeout=REPLY_SECONDS)

    assert (serving["admitted"], serving["requests_running"], serving["pause"]) == (True, 1, None)
    assert (paused["admitted"], paused["requests_running"], paused["requests_held"]) == (True, 0, 1)
    assert (paused["version"], paused["staged"]["version"]) == (home, staged)
    assert paused["pause"]["holder"] == "trainer at 127.0.0.1"


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


def test_the_version_is_that_of_the_weights_in_the_engine_not_the_requested_one(
    driven: WorkerProcess, trainer: Trainer, weights: Weights
) -> None:
    home = driven.state()["version"]
    refused = trainer.post("/update_weights", weight_dir=str(weights.root / "step_404"))

    assert refused.status_code == 422
    assert driven.state()["version"] == home
    assert trainer.must_get("/weight_info") == {"weight_version": home}


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


@pytest.mark.parametrize("mode", ["", "KEEP", "Abort", "hold", "keep,wait"])
def test_an_unknown_pause_mode_is_refused_before_anything_happens(
    driven: WorkerProcess, trainer: Trainer, mode: str
) -> None:
    assert trainer.client.post("/pause", params={"mode": mode}).status_code == 400
    assert trainer.must("/engine/pause_generation", mode=mode)["status"] == "error"
    protocol = driven.refusal("pause", mode=mode, lease_seconds=9)
    assert protocol[:2] == (400, "BadRequest")
    assert driven.state()["phase"] == "serving"


def test_a_pause_that_waits_answers_when_no_request_runs(
    driven: WorkerProcess, trainer: Trainer
) -> None:
    thread, replies = in_flight(driven, max_tokens=500)  # they end within the lease
    reply = trainer.must("/pause?mode=wait")

    assert reply == {"status": "paused", "inflight_requests": 0}
    thread.join(timeout=REPLY_SECONDS)
    assert len(replies[0]["token_ids"]) == 500


def test_a_pause_without_effect_is_not_answered_with_200(
    driven: WorkerProcess, trainer: Trainer
) -> None:
    trainer.must("/pause?mode=keep")
    with Trainer(driven, address="127.0.0.2") as second:
        reply = second.post("/pause?mode=keep")

    error = reply.json()["error"]
    assert (reply.status_code, error["type"]) == (409, "HeldByAnother")
    assert "127.0.0.1" in error["message"]
    assert 0 < int(reply.headers["retry-after"]) <= 30


def test_the_length_of_a_pause_is_reported_counted_and_limited(
    driven: WorkerProcess, home_version: str
) -> None:
    driven.must("pause", mode="keep", lease_seconds=60)
    state = driven.state()
    assert state["pause"]["paused_seconds"] >= 0
    assert driven.metric("rlfleet_worker_phase", phase="paused") == 1
    assert driven.metric("rlfleet_worker_paused_seconds") > 0
    driven.must("resume", version=home_version)

    before = driven.metric("rlfleet_worker_pause_seconds_count")
    expiries = driven.state()["lease_expiries"]
    driven.must("pause", mode="keep", lease_seconds=1)
    eventually(lambda: driven.state()["lease_expiries"] == expiries + 1)
    assert driven.state()["phase"] == "serving"
    assert driven.metric("rlfleet_worker_pause_seconds_count") == before + 1
    assert driven.metric("rlfleet_worker_lease_expiries_total") == expiries + 1


@pytest.fixture
def home_version(driven: WorkerProcess) -> str:
    return str(driven.state()["version"])


# --- updates ------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"weight_dir": ""}, {"weight_dir": None}, {}], ids=str)
def test_a_missing_directory_is_never_a_path(
    driven: WorkerProcess, trainer: Trainer, body: dict[str, Any]
) -> None:
    home = driven.state()["version"]
    reply = trainer.client.post("/update_weights", json=body)

    assert reply.status_code == 400
    assert driven.state()["version"] == home


def test_paths_of_weights_and_adapters_stay_below_the_roots(
    driven: WorkerProcess,
    trainer: Trainer,
    weights: Weights,
    tmp_path: Path,
    new_version: NewVersion,
) -> None:
    outside = copy_of(weights.b, tmp_path / "step_7")
    write_adapter(outside, seed=1)
    link = weights.root / f"link-{new_version()}"
    link.symlink_to(outside)
    climbing = f"{weights.root}/../{outside.relative_to('/')}"
    for path in (str(outside), str(link), climbing, "relative/step_7", "/\0"):
        update = trainer.post("/update_weights", weight_dir=path)
        assert (update.status_code, update.json()["error"]["type"]) == (422, "SourceOutsideRoots")
        adapter = trainer.post("/v1/load_lora_adapter", lora_name="x", lora_path=path)
        assert (adapter.status_code, adapter.json()["error"]["type"]) == (
            422,
            "SourceOutsideRoots",
        )
        rpc = trainer.post(
            "/collective_rpc", method="reload_weights", kwargs={"weights_path": path}
        )
        assert rpc.status_code == 422
    assert driven.state()["adapters"] == []


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


@pytest.mark.parametrize(
    "body",
    [
        {"weight_dir": "/x", "update_info": {}},
        {"update_info": "a string"},
        {"update_info": {"file": "/x"}},
        {"weights": "/x"},
    ],
    ids=str,
)
def test_files_and_collectives_are_not_confused(
    driven: WorkerProcess, trainer: Trainer, body: dict[str, Any]
) -> None:
    home = driven.state()["version"]
    reply = trainer.client.post("/update_weights", json=body)

    assert 400 <= reply.status_code < 500
    assert (driven.state()["phase"], driven.state()["version"]) == ("serving", home)


def test_without_a_transfer_backend_the_answer_is_a_4xx_with_the_reason(
    worker: WorkerProcess, home: str
) -> None:
    with Trainer(worker) as trainer:
        reply = trainer.post("/init_weight_transfer_engine", init_info={})
    # This worker is the operator's besides.
    assert reply.status_code == 409
    assert worker.state()["transfer"] is None


# --- adapters -----------------------------------------------------------------------------------


def test_the_routes_of_all_trainers_are_names_of_one_resource(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    path = write_adapter(weights.root / new_version() / "step_8", seed=8)
    seen = []

    def note() -> None:
        (adapter,) = driven.state()["adapters"]
        seen.append({key: adapter[key] for key in ("name", "version", "source", "digest")})
        driven.must_remove("one")

    driven.must("adapters/one", version="8", source={"path": str(path)})
    note()
    plain = {"lora_name": "one", "lora_path": str(path)}
    uri = {"lora_name": "one", "source": {"uri": f"file://{path}"}, "load_inplace": True}
    for route in ("/load_lora_adapter", "/v1/load_lora_adapter"):
        trainer.must(route, **plain)
        note()
    for route in ("/engine/load_lora", "/engine/update/load_lora", "/v1/loras"):
        assert trainer.must(route, **uri)["status"] == "success"
        note()

    assert len(seen) == 6
    assert all(each == seen[0] for each in seen)


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


def test_every_route_needs_the_token_and_no_log_has_it(driven: WorkerProcess) -> None:
    base = f"http://127.0.0.1:{driven.admin_port}"
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        with httpx.Client(base_url=base, headers=headers, trust_env=False) as stranger:
            for method, path in routes():
                reply = stranger.request(method, path, json={})
                assert (reply.status_code, path) == (401, path)
            assert stranger.get("/t/wrong/is_paused").status_code == 401
    with Trainer(driven, in_path=True) as trainer:
        assert trainer.get("/is_paused").status_code == 200
        assert trainer.post("/pause?mode=never").status_code == 400
        assert trainer.post("/nothing").status_code == 404
    assert TOKEN not in driven.log()


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


def test_a_worker_reports_its_pod_and_its_process(driven: WorkerProcess) -> None:
    state = driven.state()

    assert state["worker"] == socket.gethostname()
    assert re.fullmatch(r"[0-9a-f]{32}", state["instance"])


def test_every_call_may_be_sent_again(
    driven: WorkerProcess, trainer: Trainer, weights: Weights, new_version: NewVersion
) -> None:
    folder = str(copy_of(weights.c, weights.root / new_version() / "step_12"))
    before = driven.metric("rlfleet_worker_load_seconds_count")
    for path, body in (
        ("/pause?mode=keep", {}),
        ("/update_weights", {"weight_dir": folder}),
        ("/update_weight_version", {"new_version": "12"}),
        ("/resume", {}),
    ):
        assert [trainer.post(path, **body).status_code for _ in range(3)] == [200] * 3

    assert driven.state()["version"] == "12"
    assert driven.metric("rlfleet_worker_load_seconds_count") == before + 1
