"""Prompts on the weights in the engine, and fences that let requests end."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

from tests.engine.conftest import Weights
from tests.support import damage
from tests.support.checkpoints import copy_of
from tests.support.waiting import eventually
from tests.support.worker import REPLY_SECONDS, WorkerProcess, token_request

NewVersion = Callable[[], str]
PROMPTS = ["the fleet loads new weights", "a trainer writes a checkpoint", "one two three"]


def run_prompts(worker: WorkerProcess, compare_with: str) -> dict[str, Any]:
    state = worker.must("probe", prompts=PROMPTS, max_tokens=24, compare_with=compare_with)
    return dict(state["probe"])


def test_a_version_is_judged_behind_the_latch_against_the_one_before(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    before = worker.greedy()
    first = run_prompts(worker, home)
    assert (first["version"], first["finite"]) == (home, True)
    assert worker.greedy() == before

    worker.stage(version := new_version(), weights.b)
    worker.must("fence", reason="a canary")
    worker.must("load", version=version)
    other = run_prompts(worker, home)
    state = worker.state()
    assert (state["phase"], state["admitted"]) == ("joining", False)
    assert (other["version"], other["compared_with"], other["finite"]) == (version, home, True)
    # Another seed is another policy: a token of the one is improbable under the other.
    assert other["logprob_drift"] > 1
    assert other["kl"] > 0.5
    assert other["tokens"] > 20
    assert all(math.isfinite(other[key]) for key in ("logprob_drift", "kl", "repetition"))
    worker.must("admit", version=version)
    assert worker.greedy() != before


def test_the_same_weights_under_another_label_do_not_differ(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    run_prompts(worker, home)
    worker.swap(version := new_version(), copy_of(weights.a, weights.root / f"again-{version}"))
    same = run_prompts(worker, home)

    assert (same["version"], same["compared_with"]) == (version, home)
    # The prompts' batches may differ between two runs, and with them the last bits of bfloat16.
    assert same["logprob_drift"] < 0.05
    assert same["kl"] < 0.01


def test_a_version_is_judged_against_the_named_weights_and_not_those_that_came_between(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    run_prompts(worker, home)
    worker.must("fence", reason="a canary")
    worker.stage(other := new_version(), weights.b)
    worker.must("load", version=other)
    assert run_prompts(worker, home)["logprob_drift"] > 1
    like_home = copy_of(weights.a, weights.root / f"like-home-{other}")
    worker.stage(version := new_version(), like_home)
    worker.must("load", version=version)
    judged = run_prompts(worker, home)
    worker.must("admit", version=version)

    assert (judged["version"], judged["compared_with"]) == (version, home)
    assert judged["logprob_drift"] < 0.05


def test_a_version_that_babbles_is_seen(
    worker: WorkerProcess, home: str, weights: Weights, new_version: NewVersion
) -> None:
    run_prompts(worker, home)
    # All tokens are equally likely, and the first of them is taken: every prompt ends in the same.
    babbling = copy_of(weights.b, weights.root / f"babbling-{new_version()}")
    tensors = damage.read_tensors(babbling / damage.WEIGHTS)
    damage.fill(tensors, "lm_head.weight", 0.01)
    damage.write_tensors(babbling / damage.WEIGHTS, tensors)
    worker.swap(version := new_version(), babbling)
    repeated = run_prompts(worker, home)

    assert (repeated["version"], repeated["finite"]) == (version, True)
    assert repeated["repetition"] > 0.9


def test_a_fence_with_time_lets_running_requests_end_and_takes_no_new_ones(
    worker: WorkerProcess, home: str
) -> None:
    replies: list[dict[str, Any]] = []
    running = threading.Thread(
        target=lambda: replies.append(worker.generate([1, 2, 3], max_tokens=800))
    )
    running.start()
    eventually(lambda: worker.state()["requests_running"] == 1)
    fencing = threading.Thread(
        target=lambda: worker.must("fence", reason="a test", drain_timeout_seconds=60)
    )
    fencing.start()
    eventually(lambda: not worker.state()["admitted"])
    turned_away = worker.public.post("/inference/v1/generate", json=token_request([1]))
    running.join(timeout=REPLY_SECONDS)
    fencing.join(timeout=REPLY_SECONDS)

    assert turned_away.status_code == 429
    assert replies[0]["choices"][0]["finish_reason"] == "length"
    assert worker.state()["phase"] == "joining"
    worker.must("admit", version=home)
    assert worker.greedy()


def test_a_fence_whose_time_is_over_ends_requests_with_what_they_have(
    worker: WorkerProcess, home: str
) -> None:
    replies: list[dict[str, Any]] = []
    running = threading.Thread(
        target=lambda: replies.append(worker.generate([1, 2, 3], max_tokens=3800))
    )
    running.start()
    worker.wait_until_generating()
    worker.must("fence", reason="a test", drain_timeout_seconds=0.2)
    running.join(timeout=REPLY_SECONDS)

    choice = replies[0]["choices"][0]
    assert choice["finish_reason"] == "abort"
    assert 0 < len(choice["token_ids"]) < 3800
    worker.must("admit", version=home)
