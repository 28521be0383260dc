"""The audit's judgement, over a table instead of a recomputation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny import BASE_DIGEST, write_tiny

from fleet_worker.audit.command import UNUSABLE, WRONG_LABEL, audit
from fleet_worker.audit.judge import Tally, judge
from fleet_worker.audit.records import BadRecordError, Record, read_records
from fleet_worker.audit.versions import Checkpoints, Source, UnknownVersionError
from fleet_worker.process.manifest import digest_in

# Log-probabilities of each checkpoint for every token: far apart, as with random weights.
TRUTH = {"/w/1": -1.0, "/w/2": -4.0, "/w/3": -7.0}


# The share of an adapter.
OVER = {None: 0.0, "/a/5": -20.0, "/a/6": -40.0}


def recompute(source: Source, records: Sequence[Record]) -> list[list[float]]:
    value = TRUTH[source.directory] + OVER[source.adapter]
    return [[value] * len(record.token_ids) for record in records]


def record(*spans: tuple[str, int, int], logprobs: Sequence[float] | None = None) -> dict[str, Any]:
    length = spans[-1][2]
    made_by = {i: f"/w/{version}" for version, start, end in spans for i in range(start, end)}
    return {
        "id": "r",
        "prompt_token_ids": [1, 2],
        "token_ids": list(range(length)),
        "logprobs": list(logprobs or (TRUTH[made_by[i]] + 0.01 for i in range(length))),
        "weight_versions": [{"version": v, "start": s, "end": e} for v, s, e in spans],
    }


def run(tmp_path: Path, records: Sequence[dict[str, Any]], *checkpoints: str) -> int:
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    named = checkpoints or ("/w/{version}",)
    return audit([str(file), "--checkpoints", *named], recompute)


def test_honest_labels_pass_and_the_table_shows_the_distinguished_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [record(("1", 0, 4)), record(("1", 0, 2), ("2", 2, 5)), record(("3", 0, 3))]

    assert run(tmp_path, records) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["version", "replies", "tokens", "agreeing"]
    rows = {line.split()[0]: line.split()[1:5] for line in lines[1:4]}
    assert rows == {"1": ["2", "6", "6", "6"], "2": ["1", "3", "3", "3"], "3": ["1", "3", "3", "3"]}
    assert lines[-1] == "all 12 tokens fit their labels"


def test_a_wrong_label_fails_and_the_right_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lying = record(("1", 0, 3))
    lying["weight_versions"][0]["version"] = "2"

    assert run(tmp_path, [record(("1", 0, 3)), lying]) == WRONG_LABEL
    assert "token 0 is off by 3.010 under 2; 1 fits best" in capsys.readouterr().out


def test_wrong_tokens_are_counted_and_the_first_ones_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, [record(("1", 0, 9), logprobs=[-50.0] * 9)])

    output = capsys.readouterr().out
    assert "wrong labels: 9 tokens" in output
    assert "and 4 more" in output


def test_tokens_that_may_have_read_older_keys_are_counted_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = record(("1", 0, 3), ("9", 3, 8), ("2", 8, 9), logprobs=[-1.0] * 3 + [-50.0] * 5 + [-4.0])
    kept["weight_versions"][1]["kv_from"] = "1"

    assert run(tmp_path, [kept], "1=/w/1", "2=/w/2") == 0
    *_, unjudged, result = capsys.readouterr().out.splitlines()
    assert unjudged.startswith("not judged: 5 tokens")
    assert result == "all 4 other tokens fit their labels"


def test_a_wrong_label_next_to_older_keys_still_fails(tmp_path: Path) -> None:
    kept = record(("1", 0, 3), ("2", 3, 8), logprobs=[-4.0] * 8)
    kept["weight_versions"][1]["kv_from"] = "1"

    assert run(tmp_path, [kept]) == WRONG_LABEL


def test_replies_without_a_token_that_can_be_judged_prove_nothing(tmp_path: Path) -> None:
    kept = record(("2", 0, 3))
    kept["weight_versions"][0]["kv_from"] = "1"

    assert run(tmp_path, [kept]) == UNUSABLE


def test_tokens_that_two_versions_score_alike_prove_nothing() -> None:
    tallies: dict[str, Tally] = {}
    parsed = Record.model_validate(record(("1", 0, 4), logprobs=[-1.0] * 4))
    judge(parsed, {"1": [-1.0] * 4, "2": [-1.1] * 4}, {"1": ["2"]}, tallies, tolerance=0.25)

    assert tallies["1"].agreeing == 4
    assert tallies["1"].telling == 0


def test_a_difference_within_the_tolerance_is_rounding(tmp_path: Path) -> None:
    assert run(tmp_path, [record(("1", 0, 1), logprobs=[-1.24])]) == 0
    assert run(tmp_path, [record(("1", 0, 1), logprobs=[-1.26])]) == WRONG_LABEL


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logprobs": [-1.0]}, "numbers of log-probabilities and tokens differ"),
        ({"weight_versions": []}, "the spans end at"),
        ({"weight_versions": [{"version": "1", "start": 1, "end": 4}]}, "gap"),
        ({"prompt_token_ids": []}, "prompt"),
        ({"token_ids": "secret"}, "token_ids"),
    ],
    ids=["log-probabilities missing", "no labels", "a gap", "no prompt", "invalid tokens"],
)
def test_a_reply_that_cannot_be_recomputed_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], words: str
) -> None:
    bad = record(("1", 0, 4)) | change

    assert run(tmp_path, [record(("1", 0, 4)), bad]) == UNUSABLE
    error = capsys.readouterr().err
    assert "line 2" in error
    assert words in error
    assert "secret" not in error


def test_a_file_without_tokens_fails(tmp_path: Path) -> None:
    empty = {"prompt_token_ids": [1], "token_ids": [], "logprobs": [], "weight_versions": []}

    assert run(tmp_path, [empty]) == UNUSABLE
    assert run(tmp_path, []) == UNUSABLE
    assert run(tmp_path, [empty, record(("1", 0, 2))]) == 0


def test_a_missing_file_fails(tmp_path: Path) -> None:
    assert audit([str(tmp_path / "none"), "--checkpoints", "/w/{version}"], recompute) == UNUSABLE


def test_a_version_without_a_checkpoint_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, [record(("3", 0, 2))], "1=/w/1") == UNUSABLE
    assert "version 3" in capsys.readouterr().err


def test_empty_lines_are_ignored() -> None:
    assert list(read_records(["", "  \n"])) == []
    with pytest.raises(BadRecordError, match="line 3"):
        list(read_records(["", json.dumps(record(("1", 0, 1))), "{}"]))


def test_checkpoints_are_given_one_by_one_or_as_a_template() -> None:
    checkpoints = Checkpoints.parse(["base=/models/x", "/weights/step_{version}"])

    assert checkpoints.directory_of("base") == "/models/x"
    assert checkpoints.directory_of("12") == "/weights/step_12"
    assert checkpoints.in_order({"10", "9", "base"}) == ["base", "9", "10"]


@pytest.mark.parametrize(
    "arguments", [["/no/template"], ["=x"], ["1="], ["/a/{version}", "/b/{version}"]]
)
def test_invalid_arguments_are_refused(arguments: list[str]) -> None:
    with pytest.raises(ValueError, match=r"VERSION=DIR|more than one template"):
        Checkpoints.parse(arguments)


def test_without_a_template_each_version_needs_a_checkpoint() -> None:
    with pytest.raises(UnknownVersionError):
        Checkpoints.parse(["1=/w/1"]).directory_of("2")


def test_each_checkpoint_is_loaded_once(tmp_path: Path) -> None:
    loads: list[str] = []

    def counting(source: Source, records: Sequence[Record]) -> list[list[float]]:
        loads.append(source.directory)
        return recompute(source, records)

    file = tmp_path / "replies.jsonl"
    records = [record(("1", 0, 2), ("2", 2, 3)), record(("2", 0, 2)), record(("3", 0, 1))]
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    assert audit([str(file), "--checkpoints", "/w/{version}"], counting) == 0
    assert sorted(loads) == ["/w/1", "/w/2", "/w/3"]


def adapted(version: str, adapter: str, *, made_by: str) -> dict[str, Any]:
    """A reply that says it came from base weights with an adapter, and one that did."""
    logprobs = [TRUTH[f"/w/{version}"] + OVER[made_by]] * 3
    reply = record((version, 0, 3), logprobs=logprobs)
    reply["weight_versions"][0]["adapter"] = adapter
    return reply


def run_adapted(tmp_path: Path, *records: dict[str, Any], adapters: str = "/a/{version}") -> int:
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    named = ["--checkpoints", "/w/{version}", "--adapters", adapters]
    return audit([str(file), *named], recompute)


def test_tokens_of_an_adapter_are_recomputed_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    true = [adapted("1", "5", made_by="/a/5"), adapted("2", "6", made_by="/a/6")]

    assert run_adapted(tmp_path, *true, record(("1", 0, 3))) == 0
    rows = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:4]]
    assert rows == ["1", "1+5", "2+6"]


@pytest.mark.parametrize("made_by", [None, "/a/6"])
def test_a_wrong_adapter_version_fails(tmp_path: Path, made_by: str | None) -> None:
    lying = adapted("1", "5", made_by=made_by)
    true = adapted("1", "6", made_by="/a/6")

    assert run_adapted(tmp_path, lying, true) == WRONG_LABEL


def test_an_adapter_without_a_directory_fails(tmp_path: Path) -> None:
    reply = adapted("1", "5", made_by="/a/5")

    assert run(tmp_path, [reply]) == UNUSABLE
    assert run_adapted(tmp_path, reply, adapters="6=/a/6") == UNUSABLE


# --- runs and digests -----------------------------------------------------------------------------

DIGESTS = {"/w/1": "sha256:" + "1" * 64, "/w/2": "sha256:" + "2" * 64, "/w/3": "sha256:" + "3" * 64}


def of(run_id: str | None, digest: str | None, made_by: str) -> dict[str, Any]:
    """A reply of version 40 of some run."""
    reply = record((made_by, 0, 3))
    (span,) = reply["weight_versions"]
    span |= {"version": "40", "run_id": run_id, "digest": digest}
    return reply


def run_40(tmp_path: Path, records: Sequence[dict[str, Any]], *checkpoints: str) -> int:
    file = tmp_path / "replies.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    command = [str(file), "--checkpoints", *checkpoints]
    return audit(command, recompute, lambda directory, **_: DIGESTS[directory])


TWO_RUNS = (of("run-7", "1" * 12, "1"), of("run-8", "2" * 12, "2"))


@pytest.mark.parametrize(
    "checkpoints",
    [
        ("run-7/40=/w/1", "run-8/40=/w/2"),
        ("40@111111111111=/w/1", "40@222222222222=/w/2"),
        ("run-7/40@111111111111=/w/1", "40=/w/2"),
    ],
    ids=str,
)
def test_two_runs_with_the_same_numbers_are_judged_by_their_own_checkpoints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], checkpoints: tuple[str, ...]
) -> None:
    assert run_40(tmp_path, TWO_RUNS, *checkpoints) == 0
    rows = [line.split()[:3] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert rows == [["run-7/40@111111111111", "1", "3"], ["run-8/40@222222222222", "1", "3"]]


def test_a_directory_whose_digest_differs_from_the_reply_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One directory for a version of two runs: the tokens of one would be judged wrongly."""
    assert run_40(tmp_path, TWO_RUNS, "40=/w/1") == UNUSABLE
    error = capsys.readouterr().err
    for named in ("/w/1", "1" * 12, "run-8/40@222222222222"):
        assert named in error


def test_replies_without_run_and_digest_are_judged_by_version(tmp_path: Path) -> None:
    assert run_40(tmp_path, [of(None, None, "1")], "40=/w/1") == 0


def test_a_template_may_hold_the_run() -> None:
    checkpoints = Checkpoints.parse(["/weights/{run}/step_{version}"])

    assert checkpoints.directory_of("run-8/40@222222222222") == "/weights/run-8/step_40"
    with pytest.raises(UnknownVersionError, match="has no run"):
        checkpoints.directory_of("40")


def test_the_digest_of_an_adapter_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = adapted("1", "5", made_by="/a/5")
    reply["weight_versions"][0]["adapter_digest"] = "5" * 12
    file = tmp_path / "replies.jsonl"
    file.write_text(json.dumps(reply))
    command = [str(file), "--checkpoints", "/w/{version}", "--adapters", "/a/{version}"]

    asked: list[tuple[str, bool]] = []

    def digest(directory: str, *, is_adapter: bool) -> str:
        asked.append((directory, is_adapter))
        return "sha256:" + "5" * 64

    assert audit(command, recompute, digest) == 0
    assert asked == [("/a/5", True)]
    assert audit(command, recompute, lambda *_, **__: "sha256:" + "6" * 64) == UNUSABLE
    assert "/a/5" in capsys.readouterr().err


def test_the_digest_of_a_directory_is_the_digest_of_its_manifest(tmp_path: Path) -> None:
    assert digest_in(str(write_tiny(tmp_path / "base", 0.0))).startswith(f"sha256:{BASE_DIGEST}")
    with pytest.raises(OSError, match="nothing"):
        digest_in(str(tmp_path / "nothing"))
