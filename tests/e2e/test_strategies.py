"""Every strategy, and what a trainer may say in a patch, on real workers under load."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from chaos.fleet import Fleet
from demo.sampler import TOKENS
from stack.offline import audit


def settings(fleet: Fleet, **rollout: object) -> None:
    """What the WeightVersion overrides from now on; nothing by default."""
    version = fleet.get(f"wv/{fleet.name}")["spec"]["version"]
    fleet.publish(version, rollout=rollout or None)


@pytest.fixture(autouse=True)
def back_to_defaults(fleet: Fleet):
    yield
    settings(fleet)
    if fleet.condition("Ready")["status"] != "True":
        fleet.roll_out(fleet.next_step())


def labelled_truly(fleet: Fleet, replies: Path, *versions: str) -> None:
    judged = audit(replies, {v: fleet.folder(int(v)) for v in versions})
    assert judged.returncode == 0, judged.stdout + judged.stderr


@pytest.mark.parametrize("strategy", ["InFlight", "Rolling"])
@pytest.mark.parametrize("mode", ["Keep", "Wait"])
def test_a_strategy_without_a_barrier_loses_nothing(fleet, tmp_path, strategy, mode):
    before = fleet.applied()
    settings(fleet, strategy=strategy, pause={"mode": mode, "drainTimeoutSeconds": 20})
    steps = [fleet.next_step() for _ in range(2)]
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: [fleet.roll_out(n) for n in steps])

    assert samples.lost == []
    assert samples.retried == {}
    assert sum(samples.tokens.values()) == samples.answered * TOKENS
    labelled_truly(fleet, replies, before, *map(str, steps))


def test_abort_cuts_requests_and_clients_get_what_they_have(fleet, tmp_path):
    before = fleet.applied()
    settings(fleet, pause={"mode": "Abort"})
    step = fleet.next_step()
    replies = tmp_path / "replies.jsonl"

    samples = fleet.while_sampling(replies, lambda: fleet.roll_out(step))

    assert samples.lost == []
    # Asked again because they were partial, not because nothing came.
    assert samples.mixed_replies == 0
    labelled_truly(fleet, replies, before, str(step))


def same_weights(fleet: Fleet, version: str) -> int:
    """The next step, with the weights of another."""
    step = fleet.next_step()
    shutil.rmtree(fleet.folder(step))
    shutil.copytree(fleet.folder(int(version)), fleet.folder(step))
    return step


def test_a_canary_that_answers_as_before_passes_with_its_figures(fleet):
    step = same_weights(fleet, fleet.applied())
    settings(fleet, strategy="Canary")

    status = fleet.roll_out(step)

    assert status["canary"]["version"] == str(step)
    assert status["canary"]["passed"] is True
    assert status["canary"]["kl"] == 0
    assert status["canary"]["pods"] == [f"{fleet.name}-0"]


def test_a_canary_that_answers_otherwise_goes_back_and_nobody_got_a_token_of_it(fleet, tmp_path):
    # Two random models agree on nothing.
    before = fleet.applied()
    settings(fleet, strategy="Canary")
    step = fleet.next_step()

    def work() -> None:
        fleet.publish(str(step))
        stalled = fleet.eventually(lambda: fleet.condition("Stalled"), "Stalled")
        assert stalled["reason"] == "CanaryRefused"
        serving = lambda: fleet.get(f"ifl/{fleet.name}")["status"]["workers"]["serving"]  # noqa: E731
        fleet.eventually(lambda: serving() == 2, "the canary serves again")

    samples = fleet.while_sampling(tmp_path / "replies.jsonl", work)
    verdict = fleet.get(f"wv/{fleet.name}")["status"]["canary"]

    assert samples.tokens.keys() == {before}
    assert samples.lost == []
    assert verdict["passed"] is False
    assert max(verdict["kl"], verdict["logprobDrift"]) > 2
    events = fleet.kubectl("describe", "wv", fleet.name).stdout.partition("Events:")[2]
    assert "CanaryRefused" in events


def test_a_suspended_version_waits_and_goes_on_when_it_may(fleet):
    before = fleet.applied()
    step = fleet.next_step()
    fleet.publish(str(step), suspend=True)
    fleet.eventually(
        lambda: fleet.get(f"wv/{fleet.name}")["status"].get("phase") == "Suspended", "Suspended"
    )

    assert fleet.applied() == before
    assert "suspend: false" in fleet.condition("Ready")["message"]

    fleet.publish(str(step), suspend=False)
    fleet.wait_whole()
    assert fleet.applied() == str(step)


def test_within_a_run_only_a_rollback_goes_back(fleet):
    older, newer = fleet.next_step(), fleet.next_step()
    fleet.publish(str(newer), runID="run-1")
    fleet.wait_whole()

    refused = fleet.kubectl(
        "patch",
        "wv",
        fleet.name,
        "--type=merge",
        "-p",
        f'{{"spec":{{"version":"{older}"}}}}',
        check=False,
    )
    assert "spec.rollbackTo" in refused.stderr

    fleet.publish(str(older), rollbackTo=str(older))
    fleet.wait_whole()
    assert fleet.applied() == str(older)
    fleet.publish(str(fleet.next_step()), runID=None)
    fleet.wait_whole()


def test_a_version_waits_for_a_checkpoint_that_does_not_exist_yet_and_is_served_when_it_does(fleet):
    step, before = fleet.next_step(), fleet.applied()
    settings(fleet, timeouts={"stageSeconds": 3})
    aside = fleet.folder(step).with_name("aside")
    fleet.folder(step).rename(aside)
    fleet.publish(str(step))
    reason = lambda: fleet.condition("Progressing")["reason"]  # noqa: E731
    fleet.eventually(lambda: reason() == "WaitingForCheckpoint", "it waits")

    assert fleet.condition("Stalled") is None
    assert fleet.get(f"wv/{fleet.name}")["status"]["appliedVersion"] == before

    aside.rename(fleet.folder(step))
    fleet.wait_whole()
    assert fleet.applied() == str(step)


def test_a_version_that_was_given_up_is_tried_again_on_an_annotation(fleet):
    step = fleet.next_step()
    settings(fleet, timeouts={"stageSeconds": 3})
    file = fleet.folder(step) / "model.safetensors"
    aside = file.with_name("aside")
    file.rename(aside)
    fleet.publish(str(step))
    phase = lambda: fleet.get(f"wv/{fleet.name}")["status"].get("phase")  # noqa: E731
    fleet.eventually(lambda: phase() == "Halted", "it is given up")
    aside.rename(file)

    fleet.kubectl("annotate", "wv", fleet.name, "rlfleet.dev/retry=1", "--overwrite")

    fleet.wait_whole()
    assert fleet.applied() == str(step)
    fleet.kubectl("annotate", "wv", fleet.name, "rlfleet.dev/retry-")
