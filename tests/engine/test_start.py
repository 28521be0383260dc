"""A worker before its first call."""

from __future__ import annotations

from tests.engine.conftest import FirstLook, Weights
from tests.support.worker import START_SECONDS, WorkerProcess


def test_a_started_worker_is_closed_until_it_is_admitted(first_look: FirstLook) -> None:
    status, headers, body = first_look.completion

    assert first_look.state["phase"] == "joining"
    assert first_look.state["admitted"] is False
    assert first_look.ready == (503, "joining")
    assert status == 429
    assert int(headers["retry-after"]) >= 1
    assert body["error"]["type"] == "WorkerClosedError"
    assert first_look.admitted_metric == 0


def test_a_closed_worker_is_alive_and_says_what_it_serves(first_look: FirstLook) -> None:
    assert first_look.alive == 200
    assert first_look.models == 200


def test_the_label_before_any_load_is_the_one_that_the_fleet_named(
    first_look: FirstLook, weights: Weights
) -> None:
    assert first_look.state["version"] == "base"
    assert first_look.state["source"]["path"] == str(weights.a)


def test_the_state_names_the_engine_and_the_process(first_look: FirstLook) -> None:
    engine = first_look.state["engine"]

    assert engine["name"] == "vllm"
    assert engine["version"].startswith("0.32.")
    assert engine["world_size"] == 1
    assert len(first_look.state["instance"]) == 32
    assert first_look.state["uptime_seconds"] < START_SECONDS


def test_the_engine_runs_as_two_processes(worker: WorkerProcess) -> None:
    assert len(worker.engine_pids()) == 1, "on CPUs the model lives in the engine core's process"
