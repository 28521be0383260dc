"""Each trainer's own sequence of calls against a real engine, with requests in flight."""

from __future__ import annotations

import itertools
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support.adapters import write_adapter
from tests.support.checkpoints import copy_of
from tests.support.environments import engine_environment, worker_python
from tests.support.trainer import Trainer
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, TOKEN, WorkerProcess, token_request

_steps = itertools.count(1000)


class Run:
    """A trainer's run: it publishes steps, and rollouts are in flight."""

    def __init__(self, worker: WorkerProcess, weights: Weights, trainer: Trainer) -> None:
        self.worker = worker
        self.weights = weights
        self.trainer = trainer

    def publish(self, of: Path) -> tuple[str, str]:
        """A step with the weights of a checkpoint: its directory and its number."""
        number = next(_steps)
        path = self.weights.root / "broadcasts" / f"step_{number}"
        path.parent.mkdir(exist_ok=True)
        copy_of(of, path)
        (path / "STABLE").touch()
        return str(path), str(number)

    def in_flight(self, **sampling: Any) -> tuple[threading.Thread, list[httpx.Response]]:
        replies: list[httpx.Response] = []
        body = token_request([1, 2, 3], **{"max_tokens": 3900, "temperature": 0, **sampling})
        thread = threading.Thread(
            target=lambda: replies.append(
                self.worker.public.post("/inference/v1/generate", json=body)
            )
        )
        thread.start()
        self.worker.wait_until_generating()
        return thread, replies

    @property
    def version(self) -> str:
        return str(self.worker.state()["version"])


@pytest.fixture
def run(driven: WorkerProcess, weights: Weights) -> Iterator[Run]:
    with Trainer(driven) as trainer:
        yield Run(driven, weights, trainer)


def spans_of(reply: httpx.Response) -> list[dict[str, Any]]:
    (choice,) = reply.json()["choices"]
    assert choice["finish_reason"] == "length"
    spans = choice["weight_versions"]
    assert [span["end"] for span in spans[:-1]] == [span["start"] for span in spans[1:]]
    return list(spans)


def test_prime_rl_updates_from_disk_and_its_running_requests_say_whose_keys_they_read(
    run: Run,
) -> None:
    trainer, home = run.trainer, run.version
    assert trainer.get("/health").status_code == 200
    (model,) = trainer.must_get("/v1/models")["data"]
    assert (model["id"], model["max_model_len"]) == ("policy", 4096)
    assert "vllm:kv_cache_usage_perc" in trainer.get("/metrics").text
    path, number = run.publish(run.weights.b)
    thread, replies = run.in_flight()

    assert trainer.must("/pause?mode=keep&clear_cache=false")["status"] == "paused"
    paused = run.worker.state()
    assert (paused["pause"]["cache_kept"], paused["requests_held"]) == (True, 1)
    assert trainer.must("/update_weights", weight_dir=path)["status"] == "ok"
    assert trainer.must("/resume")["status"] == "resumed"
    thread.join(timeout=REPLY_SECONDS)

    assert run.version == number
    spans = spans_of(replies[0])
    found = [(span["version"], span.get("kv_from"), span["end"] > 0) for span in spans]
    assert found == [(home, None, True), (number, home, True)], spans
    # A group that begins now has a salt of its own, and reads nothing old.
    body = {**token_request(list(range(5, 100)), max_tokens=4), "cache_salt": number}
    (fresh,) = spans_of(run.worker.public.post("/inference/v1/generate", json=body))
    assert "kv_from" not in fresh


@pytest.mark.long
def test_a_cleared_cache_gives_the_tokens_that_the_new_weights_alone_would_give(run: Run) -> None:
    path, number = run.publish(run.weights.b)
    prefix_run, replies = run.in_flight()
    run.trainer.must("/pause?mode=keep&clear_cache=true")
    run.trainer.must("/update_weights", weight_dir=path)
    run.trainer.must("/resume")
    prefix_run.join(timeout=REPLY_SECONDS)

    old, new = spans_of(replies[0])
    assert "kv_from" not in new
    tokens = replies[0].json()["choices"][0]["token_ids"]
    prompt = [1, 2, 3, *tokens[: new["start"]]]
    again = run.worker.generate(prompt, max_tokens=40, temperature=0)["choices"][0]["token_ids"]
    assert tokens[new["start"] : new["start"] + 40] == again
    assert (old["start"], new["version"]) == (0, number)


def test_prime_rls_adapters_change_under_one_name(run: Run) -> None:
    answers = []
    for seed in (1, 2):
        path = run.weights.root / "lora" / f"step_{next(_steps)}"
        missing = run.trainer.post("/load_lora_adapter", lora_name="run", lora_path=str(path))
        assert missing.status_code == 404
        write_adapter(path, seed=seed)
        run.trainer.must("/load_lora_adapter", lora_name="run", lora_path=str(path))
        body = {"model": "run", **token_request([5, 6], max_tokens=8, temperature=0)}
        answers.append(run.worker.public.post("/inference/v1/generate", json=body).json())
    first, second = (answer["choices"][0] for answer in answers)

    assert first["token_ids"] != second["token_ids"]
    assert second["weight_versions"][0]["adapter"] == path.name.removeprefix("step_")
    run.trainer.must("/v1/unload_lora_adapter", lora_name="run")


def test_prime_rl_with_dynamo_reads_back_what_it_set(run: Run) -> None:
    trainer = run.trainer
    path, number = run.publish(run.weights.c)
    paused = trainer.must("/engine/control/pause_generation", mode="keep", clear_cache=False)
    assert paused["status"] == "ok"
    assert trainer.must("/engine/control/is_paused") == {"is_paused": True}
    rpc = {"method": "reload_weights", "args": [], "kwargs": {"weights_path": path}, "timeout": 9}
    assert trainer.must("/collective_rpc", **rpc) == {"results": [None]}
    named = trainer.must("/engine/update/update_weight_version", new_version=number)
    assert named["status"] == "ok"
    assert trainer.must("/engine/control/get_weight_version") == {"weight_version": number}
    assert trainer.must("/engine/control/resume_generation")["status"] == "ok"
    assert run.worker.greedy()


def test_dynamos_flat_names_declare_their_version(run: Run) -> None:
    trainer = run.trainer
    path, number = run.publish(run.weights.b)
    body = {"model_path": path, "weight_version": f"step_{number}"}
    unpaused = trainer.must("/engine/update_weights_from_disk", **body)
    assert unpaused["status"] == "error"
    trainer.must("/engine/pause_generation", mode="keep", clear_cache=False)
    done = trainer.must("/engine/update_weights_from_disk", **body)
    assert (done["status"], done["version"]) == ("ok", f"step_{number}")
    assert trainer.must("/engine/flush_cache")["status"] == "ok"
    assert trainer.must("/engine/resume_generation")["status"] == "ok"
    assert run.version == f"step_{number}"


def test_nemo_rl_writes_the_same_folder_repeatedly(run: Run) -> None:
    trainer, folder = run.trainer, run.weights.root / f"refit-{next(_steps)}"
    health = trainer.must_get("/health")
    assert health["total_backends"] == 1
    assert trainer.must_get("/server_info?config_format=json")["vllm_config"]["parallel_config"]
    versions = []
    for source in (run.weights.b, run.weights.c):
        copy_of(source, folder)
        thread, replies = run.in_flight()
        trainer.must("/pause?mode=keep&clear_cache=true")
        rpc = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        assert trainer.must("/collective_rpc", **rpc) == {"results": [None]}
        assert trainer.must("/reset_prefix_cache?reset_running_requests=true")["success"] is True
        trainer.must("/resume")
        thread.join(timeout=REPLY_SECONDS)
        versions.append(spans_of(replies[0])[-1]["version"])
        folder.rename(folder.with_name(f"old-{next(_steps)}"))

    assert len(set(versions)) == 2
    assert all(version.startswith(f"{folder.name}-") for version in versions)


def test_trl_sends_its_weights_over_a_transfer_without_any_header(
    driven: WorkerProcess, weights: Weights
) -> None:
    with Trainer(driven, in_path=True) as trainer:
        assert trainer.must_get("/get_world_size") == {"world_size": 1}
        config = trainer.must_get("/server_info?config_format=json")["vllm_config"]
        assert config["weight_transfer_config"] == {"backend": "files"}
        assert config["model_config"]["dtype"] == "torch.bfloat16"
        driven.swap(f"b-{next(_steps)}", weights.b)
        expected = driven.greedy()
        driven.swap(f"a-{next(_steps)}", weights.a)

        trainer.must("/init_weight_transfer_engine", init_info={"world_size": 2})
        trainer.must("/start_weight_update")
        half = driven.state()
        trainer.must("/update_weights", update_info={"file": str(weights.b / "model.safetensors")})
        label = f"trl-{next(_steps)}"
        trainer.must("/finish_weight_update", weight_version=label)
        assert trainer.must("/reset_prefix_cache")["success"] is True
        assert trainer.must_get("/weight_info") == {"weight_version": label}

    assert (half["phase"], half["version"], half["transfer"]["updating"]) == ("loading", None, True)
    state = driven.state()
    assert (state["version"], state["source"]) == (label, None)
    assert state["transfer"]["updates"] >= 1
    assert driven.greedy() == expected


def test_a_trainer_that_resumes_and_sends_a_version_again_gives_it_another_run(
    run: Run, weights: Weights
) -> None:
    trainer, label = run.trainer, f"again-{next(_steps)}"

    def send(of: Path) -> str:
        joined = trainer.must("/init_weight_transfer_engine", init_info={"world_size": 2})
        trainer.must("/start_weight_update")
        trainer.must("/update_weights", update_info={"file": str(of / "model.safetensors")})
        done = trainer.must("/finish_weight_update", weight_version=label)
        assert done["run_id"] == joined["run_id"] == run.worker.state()["run_id"]
        return str(done["run_id"])

    first = send(weights.a)
    thread, replies = run.in_flight(max_tokens=2000)
    trainer.must("/shutdown_weight_transfer_engine")
    second = send(weights.b)
    thread.join()

    before, after = spans_of(replies[0])
    assert (before["version"], after["version"]) == (label, label)
    assert (before["run_id"], after["run_id"]) == (first, second)
    headers = replies[0].headers
    assert (headers["x-weight-run-start"], headers["x-weight-run-end"]) == (first, second)
    body = token_request([1, 2, 3], max_tokens=2)
    for demanded, status in (
        ({}, 200),
        ({"x-weight-run": second}, 200),
        ({"x-weight-run": first}, 409),
    ):
        exact = {"x-weight-version-exact": label, **demanded}
        reply = run.worker.public.post("/inference/v1/generate", json=body, headers=exact)
        assert reply.status_code == status, demanded


_SYNC = """
import sys
from vllm.distributed.weight_transfer.clients import HTTPVLLMWeightSyncClient
client = HTTPVLLMWeightSyncClient(sys.argv[1])
client.init_weight_transfer_engine({"world_size": 2})
client.start_weight_update()
client.update_weights({"file": sys.argv[2]})
client.finish_weight_update(sys.argv[3])
"""


@pytest.mark.long
def test_vllms_own_client_for_weight_transfer_works_as_it_is(
    driven: WorkerProcess, weights: Weights
) -> None:
    before, label = driven.greedy(), f"sync-{next(_steps)}"
    address = f"http://127.0.0.1:{driven.admin_port}/t/{TOKEN}"
    command = [worker_python(), "-c", _SYNC, address, str(weights.b / "model.safetensors"), label]
    done = subprocess.run(
        command, env=engine_environment(), capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert driven.state()["phase"] == "serving"
    assert driven.state()["version"] == label
    assert driven.greedy() != before


def test_a_transfer_that_fails_leaves_the_last_good_weights_behind_the_latch(run: Run) -> None:
    before, home = run.worker.greedy(), run.version
    run.trainer.must("/init_weight_transfer_engine", init_info={"world_size": 2})
    run.trainer.must("/pause?mode=keep")
    run.trainer.must("/start_weight_update")
    early = run.trainer.post("/resume")
    failed = run.trainer.post("/update_weights", update_info={"file": "/nowhere"})

    assert (early.status_code, failed.status_code) == (409, 500)
    state = run.worker.state()
    assert (state["phase"], state["version"]) == ("joining", home)
    assert run.trainer.post("/resume").status_code == 409
    run.worker.must("admit", version=home)
    assert run.worker.greedy() == before
    # And the engine takes the next update as if nothing had been.
    run.trainer.must("/start_weight_update")
    weights = run.weights.c / "model.safetensors"
    run.trainer.must("/update_weights", update_info={"file": str(weights)})
    run.trainer.must("/finish_weight_update")
    run.trainer.must("/resume")
    assert run.worker.greedy() != before


def test_skyrl_pauses_with_clients_waiting_and_puts_engines_to_sleep(run: Run) -> None:
    trainer = run.trainer
    thread, replies = run.in_flight()
    trainer.must("/pause?mode=keep&clear_cache=false")
    assert trainer.client.request("GET", "/get_world_size", json={}).json() == {"world_size": 1}
    assert trainer.must("/reset_prefix_cache", reset_running_requests=True) == {"success": True}
    trainer.must("/resume")
    thread.join(timeout=REPLY_SECONDS)
    assert len(spans_of(replies[0])) == 1

    before = run.worker.greedy()
    trainer.must("/sleep?level=1")
    assert trainer.must_get("/is_sleeping") == {"is_sleeping": True}
    waiting, late = run_later(run)
    trainer.must("/wake_up?tags=weights&tags=kv_cache")
    waiting.join(timeout=REPLY_SECONDS)
    assert late[0].status_code == 200
    assert run.worker.greedy() == before
    assert trainer.post("/sleep?level=2").status_code == 409


def run_later(run: Run) -> tuple[threading.Thread, list[httpx.Response]]:
    """A request that comes while nothing generates."""
    replies: list[httpx.Response] = []
    body = token_request([1, 2], max_tokens=4)
    thread = threading.Thread(
        target=lambda: replies.append(run.worker.public.post("/inference/v1/generate", json=body))
    )
    thread.start()
    eventually(lambda: run.worker.state()["requests_held"] == 1)
    return thread, replies


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(
            lambda run, path: run.trainer.post("/update_weights", weight_dir=path), id="pr"
        ),
        pytest.param(
            lambda run, path: run.trainer.post(
                "/collective_rpc", method="reload_weights", kwargs={"weights_path": path}
            ),
            id="rpc",
            marks=pytest.mark.long,
        ),
    ],
)
def test_an_update_of_a_worker_that_serves_is_a_whole_swap(
    run: Run, change: Callable[[Run, str], httpx.Response]
) -> None:
    path, number = run.publish(run.weights.c)
    thread, replies = run.in_flight()
    assert change(run, path).status_code == 200
    thread.join(timeout=REPLY_SECONDS)

    assert run.worker.state()["phase"] == "serving"
    spans = spans_of(replies[0])
    assert spans[-1]["version"] == number
    assert all("kv_from" not in span for span in spans)
