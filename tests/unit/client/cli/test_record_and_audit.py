"""Replies as records, and the labels of records against the versions that the fleet has pinned."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.cli import Recorded, golden, run
from tests.support.fake_objects import FakeObjects
from tests.support.present import present
from tests.unit.client.test_examples import REPLY
from typer.testing import CliRunner

from fleet_worker.audit.records import Record
from rlfleet.cli.app import app
from rlfleet.cli.checks import CHECKS_FAILED

DIGEST = "4" * 64


def reply(version: str = "42", digest: str | None = DIGEST[:12], **span: Any) -> dict[str, Any]:
    made = copy.deepcopy(REPLY) | {"prompt_token_ids": [1, 2, 3]}
    (choice,) = made["choices"]
    choice["weight_versions"] = [
        {"version": version, "start": 0, "end": 2, "digest": digest} | span
    ]
    return made


def recorded(tmp_path: Path, *replies: Any) -> tuple[int, Path, str]:
    """Exit code of `record`, the file with what it printed, and its errors."""
    text = "".join(json.dumps(each) + "\n" for each in replies)
    done = CliRunner().invoke(app, ["record"], input=text, prog_name="rlfleet")
    file = tmp_path / "records.jsonl"
    file.write_text(done.stdout)
    return done.exit_code, file, done.stderr


def fleet() -> FakeObjects:
    objects = FakeObjects()
    pin = {"version": "42", "digest": f"sha256:{DIGEST}", "source": {"path": "/weights/42"}}
    present(objects.fleet)["status"]["pinned"] = [pin, pin | {"version": "7", "runID": "run-8"}]
    return objects


def test_records_are_what_the_workers_audit_reads(tmp_path):
    code, file, _ = recorded(tmp_path, reply(), reply("7", run_id="run-8"))

    assert code == 0
    records = [Record.model_validate_json(line) for line in file.read_text().splitlines()]
    assert [r.weight_versions[0].weights for r in records] == [
        f"42@{DIGEST[:12]}", f"run-8/7@{DIGEST[:12]}",
    ]  # fmt: skip
    assert records[0].logprobs == (-0.5, -0.25)


def test_records_have_their_golden_text(tmp_path):
    _, file, _ = recorded(tmp_path, reply())

    golden(file.read_text(), "record.txt")


def test_an_incomplete_reply_is_named_and_the_others_are_recorded(tmp_path):
    without = reply()
    del without["prompt_token_ids"]
    code, file, errors = recorded(tmp_path, reply(), without, [1], reply())

    assert code == CHECKS_FAILED
    assert len(file.read_text().splitlines()) == 2
    assert "line 2: choice one/0 lacks the prompt's token ids" in errors
    assert "line 3: the line is not a reply with choices" in errors


@pytest.mark.parametrize(
    ("replies", "code", "words"),
    [
        ([reply(), reply("7", run_id="run-8")], 0, "ok"),
        ([reply(digest="5" * 12)], CHECKS_FAILED, "other bytes"),
        ([reply(digest=None)], 0, "the label has no digest"),
        ([reply("41", digest=None, run_id="group-3fa9c1d04b2e")], 0, "came over a collective"),
        ([reply("99")], 0, "no record of this version"),
        ([reply("7")], 0, "no record of this version"),
    ],
    ids=["agree", "other bytes", "no digest", "collective", "unknown", "another run"],
)
def test_labels_are_compared_with_the_digests_of_the_fleet(
    monkeypatch, tmp_path, replies, code, words
):
    _, file, _ = recorded(tmp_path, *replies)

    ended, out, errors = run(monkeypatch, fleet(), "audit", str(file), "policy")

    assert (ended, words in out) == (code, True), out
    assert f"python -m fleet_worker audit {file}" in errors


@pytest.mark.parametrize("situation", ["external", "applied"])
def test_the_labels_of_a_fleet_have_their_golden_text(monkeypatch, tmp_path, situation):
    objects = Recorded(situation)
    (pin,) = (one for one in present(objects.fleet)["status"]["pinned"] if one["version"] == "2")
    digest = pin["digest"].removeprefix("sha256:")[:12]
    _, file, _ = recorded(tmp_path, reply("2", digest), reply("2", "5" * 12), reply("9"))

    code, out, _ = run(monkeypatch, objects, "audit", str(file), "policy")

    assert code == CHECKS_FAILED
    golden(out, "audit.txt")


def test_a_version_from_two_directories_may_have_two_digests(monkeypatch, tmp_path):
    """In a fleet that a trainer drives, a directory names the run."""
    objects = fleet()
    (first, _) = present(objects.fleet)["status"]["pinned"]
    other = {"digest": f"sha256:{'5' * 64}", "source": {"path": "/weights/run-8/42"}}
    present(objects.fleet)["status"]["pinned"] = [first | other, first]
    _, file, _ = recorded(tmp_path, reply(), reply(digest="5" * 12), reply(digest="6" * 12))

    ended, out, _ = run(monkeypatch, objects, "audit", str(file), "policy", "-o", "json")

    assert ended == CHECKS_FAILED
    results = [one["result"] for one in json.loads(out)["items"]]
    assert sorted(results) == ["fail", "ok", "ok"]


def test_labels_of_adapters_are_reported_as_not_compared(monkeypatch, tmp_path):
    _, file, _ = recorded(tmp_path, reply(adapter="7"))

    code, out, _ = run(monkeypatch, fleet(), "audit", str(file), "-o", "json")

    assert code == 0
    assert [c["result"] for c in json.loads(out)["items"]] == ["warn"]


def test_choices_that_are_not_objects_are_refused(tmp_path):
    code, file, error = recorded(tmp_path, {"choices": [5]}, reply())

    assert code != 0
    assert "choices" in error
    assert len(file.read_text().splitlines()) == 1, "the other reply is recorded"


@pytest.mark.parametrize("text", ["", "not json\n", '{"prompt_token_ids": [1]}\n'])
def test_a_file_without_records_proves_nothing(monkeypatch, tmp_path, text):
    file = tmp_path / "records.jsonl"
    file.write_text(text)

    assert run(monkeypatch, fleet(), "audit", str(file), "policy")[0] == 1
