"""Bringing new weights to a serving worker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest
from tests.engine.conftest import Weights
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, events_of, token_request

NewVersion = Callable[[], str]


def test_after_a_swap_the_worker_generates_with_the_new_weights(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    before = worker.greedy()
    state = worker.swap(version := new_version(), weights.b)

    assert state["version"] == version
    assert state["source"]["path"] == str(weights.b)
    assert state["staged"] is None
    assert worker.greedy() != before


def test_a_swap_in_one_call_is_the_same_swap(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    worker.swap(new_version(), weights.b)
    expected = worker.greedy()
    worker.swap(new_version(), weights.a)
    worker.stage(version := new_version(), weights.b)
    state = worker.must("apply", version=version, mode="keep", lease_seconds=60)

    assert (state["phase"], state["version"], state["pause"]) == ("serving", version, None)
    assert worker.greedy() == expected
    assert worker.refusal("apply", version=new_version(), mode="keep", lease_seconds=60)[1] == (
        "NotStaged"
    )


def test_going_back_to_earlier_weights_gives_the_same_tokens_bit_for_bit(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    before = worker.greedy(tokens=48)
    for checkpoint in (weights.b, weights.c, weights.a):
        worker.swap(new_version(), checkpoint)

    assert worker.greedy(tokens=48) == before


def test_a_sharded_checkpoint_is_the_same_as_one_file(
    worker: WorkerProcess, weights: Weights, new_version: NewVersion
) -> None:
    worker.swap(new_version(), weights.b)
    whole = worker.greedy()
    worker.swap(new_version(), weights.a)
    worker.swap(new_version(), weights.sharded)

    assert worker.greedy() == whole


def test_staging_changes_nothing_for_requests(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    before = worker.greedy()
    state = worker.stage(version := new_version(), weights.b)

    assert state["phase"] == "serving"
    assert state["version"] == home
    assert state["staged"]["version"] == version
    assert state["staged"]["in_memory"] is True
    assert state["staged"]["size_bytes"] == (weights.b / "model.safetensors").stat().st_size
    assert worker.greedy() == before


def test_a_paused_worker_holds_requests_stays_ready_and_answers_them_after_the_swap(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    worker.must("pause", mode="keep", lease_seconds=60)
    replies: list[httpx.Response] = []
    request = token_request([1, 2, 3], max_tokens=4)
    held = threading.Thread(
        target=lambda: replies.append(worker.public.post("/inference/v1/generate", json=request))
    )
    held.start()
    eventually(lambda: worker.state()["requests_held"] == 1)

    assert worker.is_ready()
    assert worker.admin.get("/livez").status_code == 200
    assert worker.metric("rlfleet_worker_requests_held") == 1
    assert worker.metric("rlfleet_worker_phase", phase="paused") == 1

    worker.stage(version := new_version(), weights.b)
    worker.must("load", version=version)
    worker.must("resume", version=version)
    held.join(timeout=REPLY_SECONDS)
    spans = replies[0].json()["choices"][0]["weight_versions"]
    assert spans == [worker.span(0, 4)]


def test_timings_and_metrics_tell_about_the_last_swap(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    loads = worker.metric("rlfleet_worker_load_seconds_count")
    timings = worker.swap(version := new_version(), weights.b)["timings"]

    assert timings["version"] == version
    parts = [timings[f"{part}_seconds"] for part in ("pause", "load", "resume")]
    assert all(seconds > 0 for seconds in parts)
    assert timings["paused_seconds"] >= max(parts)
    assert worker.metric("rlfleet_worker_load_seconds_count") == loads + 1
    assert worker.metric("rlfleet_worker_version_info", version=version) == 1


def test_a_drain_waits_for_running_requests(
    worker: WorkerProcess, weights: Weights, home: str
) -> None:
    replies: list[httpx.Response] = []
    request = token_request([1, 2, 3], max_tokens=600)
    running = threading.Thread(
        target=lambda: replies.append(worker.public.post("/inference/v1/generate", json=request))
    )
    running.start()
    eventually(lambda: worker.state()["requests_running"] == 1)
    state = worker.must("pause", mode="wait", drain_timeout_seconds=30, lease_seconds=60)
    running.join(timeout=REPLY_SECONDS)

    assert state["pause"]["mode"] == "wait"
    # The pause came back after the request had ended.
    assert (state["requests_running"], state["requests_held"]) == (0, 0)
    choice = replies[0].json()["choices"][0]
    assert (choice["finish_reason"], len(choice["token_ids"])) == ("length", 600)


def test_a_drain_that_takes_too_long_becomes_a_keep(
    worker: WorkerProcess, weights: Weights, home: str
) -> None:
    replies: list[httpx.Response] = []
    request = token_request([1, 2, 3], max_tokens=3500)
    running = threading.Thread(
        target=lambda: replies.append(worker.public.post("/inference/v1/generate", json=request))
    )
    running.start()
    eventually(lambda: worker.state()["requests_running"] == 1)
    state = worker.must("pause", mode="wait", drain_timeout_seconds=0.05, lease_seconds=60)

    assert state["pause"]["mode"] == "keep"
    assert state["pause"]["drain_timed_out"] is True
    assert state["requests_held"] == 1
    worker.must("resume", version=home)
    running.join(timeout=REPLY_SECONDS)
    assert len(replies[0].json()["choices"][0]["token_ids"]) == 3500


def test_an_abort_ends_requests_with_the_tokens_they_have(
    worker: WorkerProcess, weights: Weights, home: str
) -> None:
    replies: list[httpx.Response] = []
    request = token_request([1, 2, 3], max_tokens=3000)
    running = threading.Thread(
        target=lambda: replies.append(worker.public.post("/inference/v1/generate", json=request))
    )
    running.start()
    worker.wait_until_generating()
    worker.must("pause", mode="keep", lease_seconds=60)
    state = worker.must("pause", mode="abort", lease_seconds=60)
    running.join(timeout=REPLY_SECONDS)

    assert state["pause"]["mode"] == "abort"
    choice = replies[0].json()["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert 0 < choice["weight_versions"][-1]["end"] == len(choice["token_ids"]) < 3000


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_abort_gives_no_reply_without_tokens_and_holds_what_arrives_later(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion, stream: bool
) -> None:
    """All places are taken, so the second request has no token. The third arrives during the pause."""
    replies: dict[str, httpx.Response] = {}
    threads: list[threading.Thread] = []

    def send(name: str, requests: int, **sampling: Any) -> None:
        body = token_request([1, 2, 3], ignore_eos=True, **sampling) | {"stream": stream}
        ask = partial(worker.public.post, "/inference/v1/generate", json=body)
        threads.append(threading.Thread(target=lambda: replies.update({name: ask()})))
        threads[-1].start()
        eventually(lambda: in_worker(worker) == requests)

    send("first", 16, n=16, max_tokens=3000)
    worker.wait_until_generating(16)
    send("second", 17, max_tokens=20)
    worker.stage(version := new_version(), weights.b)
    worker.must("pause", mode="abort", lease_seconds=60)
    eventually(lambda: len(replies) == 2)
    send("third", 1, max_tokens=20)
    worker.must("load", version=version)
    worker.must("resume", version=version)
    for thread in threads:
        thread.join(timeout=REPLY_SECONDS)

    first, second, third = (replies[name] for name in ("first", "second", "third"))
    assert (first.status_code, second.status_code, third.status_code) == (200, 429, 200)
    assert (second.headers["retry-after"], second.headers["connection"]) == ("1", "close")
    reasons = [finish_reasons(reply, stream=stream) for reply in (first, third)]
    assert reasons == [["abort"] * 16, ["length"]]
    assert third.headers["x-weight-version-start"] == version


def in_worker(worker: WorkerProcess) -> int:
    state = worker.state()
    return int(state["requests_running"]) + int(state["requests_held"])


def finish_reasons(reply: httpx.Response, *, stream: bool) -> list[str]:
    events = events_of(reply.text) if stream else [reply.json()]
    choices = [choice for event in events for choice in event.get("choices", ())]
    return [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]


def test_a_worker_whose_stager_was_killed_serves_and_stages_with_another(
    worker: WorkerProcess, weights: Weights, home: str, new_version: NewVersion
) -> None:
    before = worker.greedy()
    (stager,) = worker.stager_pids()
    os.kill(stager, signal.SIGKILL)
    state = worker.swap(version := new_version(), weights.b)

    assert state["version"] == version
    assert (state["stage_failure"] or {}).get("version") != version
    assert worker.greedy() != before
    (other,) = worker.stager_pids()
    assert other != stager
    assert os.getpriority(os.PRIO_PROCESS, other) > os.getpriority(os.PRIO_PROCESS, 0)
