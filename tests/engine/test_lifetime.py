"""How a worker starts and how it ends. Each test has a worker of its own."""

from __future__ import annotations

import json
import mmap
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.environments import ENGINE_ARGUMENTS, engine_environment, worker_python
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, TOKEN, WorkerProcess, command_of, token_request

from fleet_worker.process.manifest import digest_in

ORDERLY_SECONDS = 60
"""A limit of the wait, not a promise: a worker that does not end would take until it is killed."""
REFUSED_SECONDS = 120
"""The imports before a refusal take some seconds, on busy cores a minute."""


@contextmanager
def _in_flight(worker: WorkerProcess, count: int) -> Iterator[list[httpx.Response]]:
    """Requests that would run for long; their replies are there when the block has ended."""
    replies: list[httpx.Response] = []

    def ask(number: int) -> None:
        request = token_request([number, 2, 3], max_tokens=3900)
        with suppress(httpx.TransportError):  # of a worker that is killed
            replies.append(worker.public.post("/inference/v1/generate", json=request))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    state = worker.state
    eventually(lambda: state()["requests_running"] + state()["requests_held"] == count)
    yield replies
    for thread in threads:
        thread.join(timeout=REPLY_SECONDS)


def _sampled_by_default(worker: WorkerProcess) -> list[int]:
    """The tokens of a request that names no way of sampling, for the prompt of `greedy`."""
    request = {"prompt": [5, 6, 7], "max_tokens": 12, "ignore_eos": True, "return_token_ids": True}
    reply = worker.public.post("/v1/completions", json={"model": "policy", **request})
    return list(reply.json()["choices"][0]["token_ids"])


def _are_partial(replies: list[httpx.Response]) -> bool:
    choices = [reply.json()["choices"][0] for reply in replies]
    return all(c["finish_reason"] == "abort" and len(c["token_ids"]) < 3900 for c in choices)


def test_on_sigterm_with_requests_in_flight_clients_get_their_tokens_and_the_process_ends_well(
    weights: Weights, tmp_path: Path
) -> None:
    # Default sampling is greedy by the model's own files, and random without them.
    model = copy_of(weights.a, tmp_path / "model")
    (model / "generation_config.json").write_text('{"do_sample": true, "top_k": 1}')
    # A step as trainers save it: without a generation config, next to weights that it does not mean.
    step = copy_of(weights.b, tmp_path / "root" / "7")
    (step / "generation_config.json").unlink()
    shutil.copy(weights.c / damage.WEIGHTS, step / "model_ema.safetensors")
    digest = digest_in(str(step))
    started_on = {
        "RLFLEET_START_VERSION": "7",
        "RLFLEET_START_PATH": str(step),
        "RLFLEET_START_RUN_ID": "run-7",
        "RLFLEET_START_DIGEST": digest,
    }
    with WorkerProcess(
        tmp_path, model=model, roots=[weights.root, tmp_path / "root"], environment=started_on
    ) as worker:
        # Other weights take the place of the directory before vLLM reads anything.
        eventually(lambda: "starting on 7" in worker.log(), within_seconds=REFUSED_SECONDS)
        step.rename(tmp_path / "root" / "away")
        copy_of(weights.c, step)
        worker.wait_until_up()
        # Started on the version that the fleet serves: no second load before it is admitted.
        state = worker.state()
        assert (state["version"], state["source"]["path"]) == ("7", str(step))
        assert (state["run_id"], state["digest"]) == ("run-7", digest)
        worker.must("admit", version="7", run_id="run-7", digest=digest)
        swapped = worker.greedy()
        worker.swap("8", weights.a)
        worker.swap("9", weights.b)
        # The digest named the weights that made the tokens.
        assert worker.greedy() == swapped
        assert _sampled_by_default(worker) == [token for token, _ in swapped]

        with _in_flight(worker, 3) as replies:
            worker.process.send_signal(signal.SIGTERM)
        assert worker.exit_code(within_seconds=ORDERLY_SECONDS) == 0
        assert len(replies) == 3
        assert _are_partial(replies)


@pytest.mark.long
def test_the_pre_stop_hook_ends_a_paused_worker_with_queued_requests(
    weights: Weights, tmp_path: Path
) -> None:
    rewritten = copy_of(weights.b, weights.root / "rewritten")
    not_usable = {
        "RLFLEET_START_VERSION": "7",
        "RLFLEET_START_PATH": str(rewritten),
        "RLFLEET_START_DIGEST": digest_in(str(weights.c)),
    }
    with WorkerProcess(
        tmp_path,
        model=weights.a,
        roots=[weights.root],
        environment=not_usable,
        options=["--log-format=json"],
    ) as worker:
        worker.wait_until_up()
        # The digest does not fit, so the model's own weights are loaded; log and state have the reason.
        state = worker.state()
        assert (state["version"], state["digest"]) == ("base", digest_in(str(weights.a)))
        assert state["stage_failure"]["reason"] == "DigestMismatch"
        lines = [json.loads(line) for line in worker.log().splitlines() if line.startswith("{")]
        start = next(line for line in lines if line.get("event") == "start")
        assert start["level"] == "WARNING"
        assert "DigestMismatch" in start["message"]
        assert TOKEN not in worker.log()
        ours = [line for line in lines if line.get("logger", "").startswith("fleet_worker")]
        assert all(line["timestamp"] and line["message"] for line in ours)

        worker.must("admit", version="base")
        worker.must("pause", mode="keep", lease_seconds=60)
        with _in_flight(worker, 3) as replies:
            environment = engine_environment() | {
                "RLFLEET_ADMIN_TOKEN_FILE": str(worker.token_file),
                "RLFLEET_ADMIN_PORT": str(worker.admin_port),
            }
            hook = [worker_python(), "-m", "fleet_worker", "drain"]
            done = subprocess.run(hook, env=environment, timeout=60, check=False)
        assert done.returncode == 0
        assert worker.exit_code(within_seconds=ORDERLY_SECONDS) == 0
        assert _are_partial(replies)
        assert len(replies) == 3


@pytest.mark.long
def test_a_silent_engine_fails_the_liveness_probe_and_a_dead_one_ends_the_process(
    weights: Weights, tmp_path: Path
) -> None:
    options = ["--silence-seconds=1"]
    with WorkerProcess(tmp_path, model=weights.a, roots=[weights.root], options=options) as worker:
        worker.wait_until_up().must("admit", version="base")
        (engine,) = worker.engine_pids()

        os.kill(engine, signal.SIGSTOP)
        eventually(lambda: worker.admin.get("/livez").status_code == 503)
        assert "not answered" in worker.admin.get("/livez").text
        os.kill(engine, signal.SIGCONT)
        eventually(lambda: worker.admin.get("/livez").status_code == 200)
        assert worker.greedy()

        # In the middle of an admin call, which waits for a request to end.
        answers: list[int | str] = []
        with _in_flight(worker, 1):
            call = threading.Thread(target=lambda: answers.append(_pause_until_drained(worker)))
            call.start()
            eventually(lambda: worker.state()["phase"] == "pausing")
            os.kill(engine, signal.SIGKILL)
            assert worker.exit_code(within_seconds=ORDERLY_SECONDS) == 1
            call.join(timeout=REPLY_SECONDS)
        assert answers[0] != 200
        assert "the engine process died" in worker.log()


def _pause_until_drained(worker: WorkerProcess) -> int | str:
    try:
        return worker.call("pause", mode="wait", lease_seconds=60).status_code
    except httpx.TransportError as error:
        return type(error).__name__


@pytest.mark.long
def test_a_model_in_two_processes_is_swapped_in_both_and_dies_with_either(
    weights: Weights, tmp_path: Path
) -> None:
    arguments = [*ENGINE_ARGUMENTS, "--tensor-parallel-size=2"]
    changing = copy_of(weights.b, tmp_path / "root" / "changing")
    with WorkerProcess(
        tmp_path,
        model=weights.a,
        roots=[weights.root, tmp_path / "root"],
        engine_arguments=arguments,
        options=["--staging-memory-bytes=0"],
    ) as worker:
        worker.wait_until_up().must("admit", version="base")
        assert worker.state()["engine"]["world_size"] == 2
        first = worker.greedy()
        worker.swap("1", weights.b)
        assert worker.greedy() != first
        worker.swap("2", weights.a)
        assert worker.greedy() == first

        # Each process reads the files again, and notices a write that changes no time.
        with (changing / damage.WEIGHTS).open("r+b") as file, mmap.mmap(file.fileno(), 0) as writer:
            writer[:] = writer[:]
            worker.stage("3", changing)
            worker.must("pause", mode="keep", lease_seconds=60)
            writer[-1] ^= 1
            assert worker.refusal("load", version="3")[1] == "CheckpointChanged"
        assert (worker.state()["phase"], worker.state()["version"]) == ("joining", "2")
        worker.must("admit", version="2")
        assert worker.greedy() == first

        (core,) = worker.engine_pids()
        processes = worker.children_of(core)
        assert len(processes) == 2
        os.kill(processes[1], signal.SIGKILL)
        assert worker.exit_code(within_seconds=2 * ORDERLY_SECONDS) == 1


@pytest.mark.long
def test_when_the_last_good_weights_cannot_be_put_back_either_the_process_ends_with_a_failure(
    weights: Weights, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    good = copy_of(weights.b, root / "good")
    overflowing = copy_of(weights.c, root / "overflowing")
    damage.make_overflow(overflowing)
    # Nothing is held in memory: all loads read the files.
    options = ["--staging-memory-bytes=0"]
    with WorkerProcess(tmp_path, model=weights.a, roots=[root], options=options) as worker:
        worker.wait_until_up().must("admit", version="base")
        first = worker.greedy()
        assert worker.stage("1", good)["staged"]["in_memory"] is False
        worker.swap("1", good)
        assert worker.greedy() != first

        # A deleted directory alone harms nothing, its files are open.
        shutil.rmtree(good)
        worker.stage("2", overflowing)
        worker.must("pause", mode="keep", lease_seconds=60)
        assert worker.refusal("load", version="2")[1] == "ProbeFailed"
        assert (worker.state()["phase"], worker.state()["version"]) == ("joining", "1")
        worker.must("admit", version="1")

        # One that was cut short cannot be put back.
        also_good = copy_of(weights.d, root / "also-good")
        worker.swap("3", also_good)
        os.truncate(also_good / damage.WEIGHTS, 1000)
        worker.stage("4", overflowing)
        worker.must("pause", mode="keep", lease_seconds=60)
        assert worker.refusal("load", version="4")[1] == "ProbeFailed"
        assert worker.exit_code(within_seconds=ORDERLY_SECONDS) == 1
        assert "could not be loaded again" in worker.log()


@pytest.mark.long
def test_weights_exchanged_while_the_engine_starts_are_never_served_under_their_label(
    weights: Weights, tmp_path: Path
) -> None:
    start = copy_of(weights.b, tmp_path / "root" / "7")
    environment = {"RLFLEET_START_VERSION": "7", "RLFLEET_START_PATH": str(start)}
    with WorkerProcess(
        tmp_path, model=weights.a, roots=[tmp_path / "root"], environment=environment
    ) as worker:
        eventually(lambda: "starting on 7" in worker.log(), within_seconds=REFUSED_SECONDS)
        (start / damage.WEIGHTS).write_bytes((weights.c / damage.WEIGHTS).read_bytes())
        assert worker.exit_code(within_seconds=REFUSED_SECONDS) == 1
        assert "changed after its digest was computed" in worker.log()


def _imports(worker: WorkerProcess) -> bool:
    return "starting on base" in worker.log()


def _waits_for_its_engine(worker: WorkerProcess) -> bool:
    return any("multiprocessing.spawn" in command_of(pid) for pid in worker.engine_pids())


@pytest.mark.parametrize(
    "moment", [_imports, pytest.param(_waits_for_its_engine, marks=pytest.mark.long)]
)
def test_a_worker_that_is_stopped_while_it_starts_ends_at_once(
    weights: Weights, tmp_path: Path, moment: Callable[[WorkerProcess], bool]
) -> None:
    with WorkerProcess(tmp_path, model=weights.a, roots=[weights.root]) as worker:
        eventually(lambda: moment(worker), within_seconds=REFUSED_SECONDS, describe=worker.log_tail)
        started = worker.engine_pids()
        worker.process.send_signal(signal.SIGTERM)
        assert worker.exit_code(within_seconds=ORDERLY_SECONDS) == 0
        assert "stopped while starting" in worker.log()
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started))
