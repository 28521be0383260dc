"""Every strategy on real workers under load, and what canaries are for."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaos.fleet import Fleet
from demo.sampler import TOKENS
from stack.offline import audit


def settings(fleet: Fleet, **rollout: object) -> None:
    """Patch the rollout settings of the WeightVersion; by default, remove them."""
    version = fleet.get(f"wv/{fleet.name}")["spec"]["version"]
    fleet.publish(version, rollout=rollout or None)


def any_repetition(fleet: Fleet) -> None:
    """Let canaries repeat themselves. One random model in eight does beyond the default limit, and
    which version is served here depends on the tests before.
    """
    limit = {"spec": {"rollout": {"canary": {"maxRepetitionPercent": 100}}}}
    fleet.patch_fleet(limit)


@pytest.fixture(autouse=True)
def back_to_defaults(fleet: Fleet):
    yield
    fleet.patch_fleet({"spec": {"rollout": {"canary": None}}})
    settings(fleet)
    ready = fleet.eventually(lambda: fleet.condition("Ready"), "Ready reflects the patch")
    if ready["status"] != "True":
        fleet.roll_out(fleet.next_step())


def check_labels(fleet: Fleet, replies: Path, *versions: str) -> None:
    judged = audit(replies, {v: fleet.folder(int(v)) for v in versions})
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize(
    ("strategy", "mode"),
    [
        ("InFlight", "Keep"),
        ("Rolling", "Wait"),
        pytest.param("InFlight", "Wait", marks=pytest.mark.long),
        pytest.param("Rolling", "Keep", marks=pytest.mark.long),
    ],
)
def test_a_strategy_without_a_barrier_loses_nothing(fleet, tmp_path, strategy, mode):
    before = fleet.applied()
    settings(fleet, strategy=strategy, pause={"mode": mode, "drainTimeoutSeconds": 20})
    steps = [fleet.next_step() for _ in range(2)]
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: [fleet.roll_out(n) for n in steps])

    assert samples.lost == []
    assert samples.retried == {}
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    check_labels(fleet, replies, before, *map(str, steps))


@pytest.mark.long
def test_abort_cuts_requests_and_clients_get_what_they_have(fleet, tmp_path):
    before = fleet.applied()
    settings(fleet, pause={"mode": "Abort"})
    step = fleet.next_step()
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: fleet.roll_out(step))

    assert samples.lost == []
    # Asked again because they were partial, not because nothing came.
    assert samples.mixed_replies == 0
    check_labels(fleet, replies, before, str(step))


SAME_WEIGHTS, OTHER_WEIGHTS = 0.1, 2.0
"""Nats: the most that two runs of the same weights differ by, the least that two random models do."""


def same_weights(fleet: Fleet, version: str) -> int:
    """The next step, with the weights of another."""
    step = fleet.next_step()
    shutil.rmtree(fleet.folder(step))
    shutil.copytree(fleet.folder(int(version)), fleet.folder(step))
    return step


def test_a_canary_that_answers_as_before_passes_with_its_figures(fleet):
    step = same_weights(fleet, fleet.applied())
    any_repetition(fleet)
    settings(fleet, strategy="Canary")

    verdict = fleet.roll_out(step)["canary"]

    assert verdict["version"] == str(step)
    assert verdict["passed"] is True
    # Batches may differ between two runs, and with them the last bits of bfloat16.
    assert max(verdict["kl"], verdict["logprobDrift"]) < SAME_WEIGHTS
    (canary,) = verdict["pods"]
    assert canary in fleet.pods()  # the second one if the first is slow to answer


def test_a_canary_with_different_answers_goes_back_before_any_client_gets_its_tokens(
    fleet, tmp_path
):
    # Two random models agree on nothing.
    before = fleet.applied()
    any_repetition(fleet)
    settings(fleet, strategy="Canary")
    step = fleet.next_step()
    like_refused = same_weights(fleet, str(step))

    def is_refused(version: int) -> bool:
        verdict = fleet.get(f"wv/{fleet.name}")["status"].get("canary") or {}
        refused = verdict.get("version") == str(version) and verdict["passed"] is False
        return refused and fleet.reason("Stalled") == "CanaryRefused"

    def work() -> None:
        # The canary still has the first one when the second one comes, and they answer alike.
        for version in (step, like_refused):
            fleet.publish(str(version))
            fleet.eventually(lambda: is_refused(version), f"version {version} is refused")  # noqa: B023 - called at once
        fleet.eventually(
            lambda: fleet.get(f"ifl/{fleet.name}")["status"]["workers"]["serving"] == 2,
            "the canary serves again",
        )

    samples = fleet.while_sampling(tmp_path / "replies.jsonl", work)
    verdict = fleet.get(f"wv/{fleet.name}")["status"]["canary"]

    assert samples.tokens.keys() == {before}
    assert samples.lost == []
    assert verdict["passed"] is False
    assert max(verdict["kl"], verdict["logprobDrift"]) > OTHER_WEIGHTS
    fleet.eventually(lambda: "CanaryRefused" in fleet.events(), "the Event")
