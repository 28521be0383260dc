"""`rlfleet check`: what it runs in which pod, and what it makes of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tests.support.cli import Recorded, golden, run

from rlfleet.cli import kubectl
from rlfleet.cli.check import command_for
from rlfleet.cli.checks import CHECKS_FAILED
from rlfleet.cli.kubectl import Ended

ACCEPTED = {"accepted": True, "kind": "checkpoint", "tensors": 2, "bytes": 24, "digest": "sha256:a"}
REFUSED = {"accepted": False, "reason": "CheckpointTruncated", "message": "12 bytes short"}
FORBIDDEN = 'Error from server (Forbidden): pods "policy-0" is forbidden'


def fleet(situation: str = "applied", *, running: bool = True) -> Recorded:
    objects = Recorded(situation)
    for pod in objects.pods:
        arguments = ["serve", "--model", "/m", "--weights-root", "/w", "--", "--model=x"]
        pod["spec"]["containers"] = [{"name": "worker", "args": arguments}]
        if not running:
            pod["status"]["containerStatuses"] = []
    return objects


def checked(
    monkeypatch: pytest.MonkeyPatch, answer: Ended, *arguments: str, situation: str = "applied"
) -> tuple[list[str], tuple[int, str, str]]:
    asked: list[str] = []

    def runs(given: Sequence[str]) -> Ended:
        asked.extend(given)
        return answer

    monkeypatch.setattr(kubectl, "run", runs)
    return asked, run(monkeypatch, fleet(situation), "check", "/w/3", *arguments)


def test_an_accepted_checkpoint_is_shown_with_its_digest(monkeypatch):
    asked, (code, out, _) = checked(monkeypatch, Ended(0, json.dumps(ACCEPTED), ""))

    assert code == 0
    assert "/w/3 in policy-0: accepted" in out
    assert "2 tensors, 24 bytes, sha256:a" in out
    assert asked[:2] == ["exec", "policy-0"]
    assert asked[-2:] == ["--max-lora-rank=0", "/w/3"]
    assert {"--against=/m", "--weights-root=/w", "--namespace=rl"} <= set(asked)


@pytest.mark.parametrize(("word", "answer"), [("accepted", ACCEPTED), ("refused", REFUSED)])
def test_the_result_has_its_golden_text(monkeypatch, word, answer):
    _, (_, out, _) = checked(monkeypatch, Ended(0, json.dumps(answer), ""))

    golden(out, f"check.{word}.txt")


def test_the_worker_reads_the_directory_as_the_kind_that_is_named(monkeypatch):
    asked, _ = checked(monkeypatch, Ended(0, json.dumps(ACCEPTED), ""), "--kind=adapter")

    assert "--kind=adapter" in asked


def test_what_workers_ignore_or_cast_is_shown(monkeypatch):
    answer = ACCEPTED | {"remarks": ["[2] tensors from F32 to BF16"]}
    _, (code, out, _) = checked(monkeypatch, Ended(0, json.dumps(answer), ""))

    assert code == 0
    assert "remark  [2] tensors from F32 to BF16" in out


def test_a_refused_checkpoint_has_its_own_exit_code(monkeypatch):
    answer = Ended(1, json.dumps(REFUSED), "command terminated with exit code 1")
    _, (code, out, _) = checked(monkeypatch, answer, "-o", "json")

    assert code == CHECKS_FAILED
    assert json.loads(out)["reason"] == "CheckpointTruncated"


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (Ended(1, "", FORBIDDEN), 7, "create on pods/exec"),
        (Ended(2, "", "invalid choice: 'check'\ncommand terminated"), 1, "invalid choice"),
    ],
)
def test_a_command_without_a_result_is_an_error(monkeypatch, answer, code, words):
    _, (found, _, err) = checked(monkeypatch, answer)

    assert found == code
    assert words in " ".join(err.split())


def test_a_fleet_that_a_trainer_drives_is_checked_too(monkeypatch):
    answer = Ended(0, json.dumps(ACCEPTED), "")
    asked, (code, _, _) = checked(monkeypatch, answer, "policy", situation="external")

    assert (code, asked[:2]) == (0, ["exec", "policy-0"])


def test_a_fleet_without_a_running_worker_is_an_error(monkeypatch):
    code, _, err = run(monkeypatch, fleet(running=False), "check", "/w/3")

    assert code == 6
    assert "no running worker" in " ".join(err.split())


def test_a_missing_kubectl_is_an_error(monkeypatch):
    monkeypatch.setenv("PATH", "")
    code, _, err = run(monkeypatch, fleet(), "check", "/w/3")

    assert code == 8
    assert "install kubectl" in " ".join(err.split())


def test_the_rank_is_the_workers_if_it_has_slots_for_adapters():
    arguments: list[Any] = ["serve", "--model", "/m", "--max-loras", "2", "--max-lora-rank", "8"]

    assert "--max-lora-rank=8" in command_for(arguments, "/w/3")
