"""The audit on recorded replies: honest, wrong and damaged ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet_worker.audit.command import UNUSABLE, WRONG_LABEL, audit, run
from fleet_worker.audit.judge import Tally, table
from fleet_worker.audit.records import Record
from fleet_worker.audit.versions import Checkpoints, Source, neighbours

SECRET = 777_001
"""A token that no message may repeat."""


def truth_of(source: Source, token: int) -> float:
    """A checkpoint's value for a token: different for every version, and far from its neighbours."""
    version = int(source.directory.rpartition("/")[2])
    over = 0 if source.adapter is None else 50 + 7 * int(source.adapter.rpartition("/")[2])
    return -1.0 - 3 * version - over - token % 5 / 10


def recompute(source: Source, records: Sequence[Record]) -> list[list[float]]:
    return [[truth_of(source, token) for token in record.token_ids] for record in records]


def made(spans: Sequence[tuple[int, int]], *, prompt: Sequence[int] = (1,)) -> dict[str, Any]:
    """A reply of spans (version, number of tokens), as an honest worker records it."""
    tokens: list[int] = []
    logprobs, labelled = [], []
    for version, count in spans:
        start = len(tokens)
        tokens += range(SECRET + start, SECRET + start + count)
        logprobs += [truth_of(Source(f"/w/{version}"), token) for token in tokens[start:]]
        labelled.append({"version": str(version), "start": start, "end": len(tokens)})
    return {
        "prompt_token_ids": list(prompt),
        "token_ids": tokens,
        "logprobs": logprobs,
        "weight_versions": labelled,
    }


def audited(tmp_path: Path, *lines: bytes | dict[str, Any], versions: str = "/w/{version}") -> int:
    file = tmp_path / "replies.jsonl"
    texts = [each if isinstance(each, bytes) else json.dumps(each).encode() for each in lines]
    file.write_bytes(b"\n".join(texts))
    return audit([str(file), "--checkpoints", versions], recompute)


SPANS = st.lists(st.tuples(st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=5)


def tallies_of(records: Sequence[dict[str, Any]]) -> dict[str, Tally]:
    parsed = [Record.model_validate(each) for each in records]
    checkpoints = Checkpoints({}, "/w/{version}")
    return run(parsed, checkpoints, recompute, 0.25)[0]


@given(st.lists(SPANS, min_size=1, max_size=4))
def test_honest_replies_pass_with_any_spans(replies: list[list[tuple[int, int]]]) -> None:
    tallies = tallies_of([made(spans) for spans in replies])

    assert not any(tally.wrong for tally in tallies.values())
    assert sum(tally.tokens for tally in tallies.values()) == sum(
        count for spans in replies for _, count in spans
    )
    alone = len(tallies) == 1
    assert all(tally.telling == (0 if alone else tally.tokens) for tally in tallies.values())


@given(SPANS, st.data())
def test_a_span_under_the_wrong_version_fails_for_each_of_its_tokens(
    spans: list[tuple[int, int]], data: st.DataObject
) -> None:
    which = data.draw(st.integers(0, len(spans) - 1))
    claimed = str(data.draw(st.integers(0, 12).filter(lambda v: v != spans[which][0])))
    reply = made(spans)
    reply["weight_versions"][which]["version"] = claimed
    wrong = [line for tally in tallies_of([reply]).values() for line in tally.wrong]

    assert len(wrong) == spans[which][1]
    assert all(f"under {claimed}" in line for line in wrong)


@given(SPANS.filter(lambda spans: len(spans) > 1), st.data())
def test_a_shifted_boundary_fails(spans: list[tuple[int, int]], data: st.DataObject) -> None:
    distinct = [(version * 2 + i % 2, count) for i, (version, count) in enumerate(spans)]
    reply = made(distinct)
    first, second = reply["weight_versions"][:2]
    shift = data.draw(st.integers(1 - first["end"], second["end"] - second["start"] - 1))
    first["end"] += shift
    second["start"] += shift
    wrong = sum(len(tally.wrong) for tally in tallies_of([reply]).values())

    assert wrong == abs(shift)


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(b"{", id="cut off"),
        pytest.param(b"\xff\xfe{}", id="no UTF-8"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="a list"),
        pytest.param(b"7", id="a number"),
        pytest.param(b"[" * 100_000, id="without a bottom"),
        pytest.param(json.dumps(made([(1, 2)])).encode()[:-30], id="the end is missing"),
        pytest.param(json.dumps(made([(1, 2)])).encode() * 2, id="two on one line"),
        pytest.param(b'{"token_ids":[777001]}', id="nothing but tokens"),
    ],
)
def test_a_broken_line_fails_without_a_stack_or_its_content(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: bytes
) -> None:
    assert audited(tmp_path, made([(1, 2)]), line) == UNUSABLE

    error = capsys.readouterr().err
    assert error.startswith("audit: ")
    assert error.count("\n") == 1
    assert str(SECRET) not in error


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "null", '"x"'])
def test_a_log_probability_of_nan_matches_no_version(tmp_path: Path, value: str) -> None:
    reply = json.dumps(made([(1, 3)]))
    first = str(made([(1, 3)])["logprobs"][0])
    line = reply.replace(first, value, 1).encode()

    assert audited(tmp_path, line) in (WRONG_LABEL, UNUSABLE)
    assert audited(tmp_path, reply.encode()) == 0


@pytest.mark.parametrize(
    "missing", ["prompt_token_ids", "token_ids", "logprobs", "weight_versions"]
)
def test_a_reply_without_a_required_part_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    reply = made([(1, 2)])
    del reply[missing]

    assert audited(tmp_path, reply) == UNUSABLE
    assert f"line 1: {missing}" in capsys.readouterr().err


@pytest.mark.parametrize(
    "spans",
    [
        pytest.param([("1", 0, 2), ("2", 1, 4)], id="an overlap"),
        pytest.param([("1", 0, 2), ("2", 3, 4)], id="a gap"),
        pytest.param([("1", 0, 0), ("1", 0, 4)], id="a span of nothing"),
        pytest.param([("1", 2, 4), ("2", 0, 2)], id="another order"),
        pytest.param([("1", 0, -1)], id="backwards"),
        pytest.param([("1", 0, 10**12)], id="more than there is of anything"),
    ],
)
def test_spans_that_do_not_cover_each_token_once_fail(
    tmp_path: Path, spans: list[tuple[str, int, int]]
) -> None:
    reply = made([(1, 4)])
    reply["weight_versions"] = [{"version": v, "start": s, "end": e} for v, s, e in spans]

    assert audited(tmp_path, reply) == UNUSABLE


def test_names_in_any_script_are_in_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = made([(1, 2)]) | {"id": "réponse 模型 🙂"}
    reply["logprobs"] = [-500.0, -500.0]

    assert audited(tmp_path, reply) == WRONG_LABEL
    assert "réponse 模型 🙂: token 0" in capsys.readouterr().out


# --- versions ---------------------------------------------------------------------------------------

LABELS = st.text(max_size=12)


@given(
    st.lists(st.integers(0, 10**30), unique=True, max_size=8), st.sampled_from(["", "step_", "v"])
)
def test_versions_of_a_template_are_sorted_by_number(numbers: list[int], prefix: str) -> None:
    order = Checkpoints({}, "/w/{version}").in_order(f"{prefix}{number}" for number in numbers)

    assert order == [f"{prefix}{number}" for number in sorted(numbers)]


@given(st.sets(LABELS, max_size=8))
def test_each_version_is_in_the_order_once(labels: set[str]) -> None:
    labels = {label for label in labels if "+" not in label}
    order = Checkpoints({}, "/w/{version}").in_order(labels)

    assert sorted(order) == sorted(labels)
    for label in labels:
        beside = neighbours(order, label)
        assert label not in beside
        assert len(beside) == min(2, len(labels) - 1) or label in (order[0], order[-1])


@pytest.mark.parametrize("version", ["²", "٣", "9" * 5000, "", " "])
def test_a_version_with_an_unusual_number_is_sorted(version: str) -> None:
    order = Checkpoints({}, "/w/{version}").in_order(["1", version, "2"])

    assert sorted(order) == sorted(["1", "2", version])


def test_named_checkpoints_keep_their_order() -> None:
    checkpoints = Checkpoints.parse(["9=/w/9", "base=/w/0", "1=/w/1", "/w/{version}"])

    assert checkpoints.in_order(["1", "12", "3", "base"]) == ["9", "base", "1", "3", "12"]


# --- the table --------------------------------------------------------------------------------------


@given(
    st.dictionaries(
        st.text(st.characters(categories=["Lu", "Nd"]), min_size=1, max_size=12),
        st.builds(
            Tally,
            replies=st.integers(0, 10**6),
            tokens=st.integers(1, 10**9),
            worst=st.floats(0, 1e3),
            total=st.floats(0, 1e6),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_the_columns_of_each_row_align_with_their_headers(tallies: dict[str, Tally]) -> None:
    lines = list(table(tallies, list(tallies)))
    head, rows = lines[0], lines[1 : 1 + len(tallies)]

    assert {len(row) for row in rows} == {len(head)}
    assert [row.split()[0] for row in rows] == list(tallies)
    assert lines[-1].endswith("fit their labels")
