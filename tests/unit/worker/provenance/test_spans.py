"""Writing spans into replies."""

from __future__ import annotations

import json

import pytest

from fleet_worker.checkpoint.identity import WeightName
from fleet_worker.provenance.spans import (
    Dialect,
    Span,
    Spans,
    compact,
    first_and_last,
    joined,
    stamp,
)

SPANS = {0: [Span("1", 0, 3), Span("2", 3, 5)], 1: [Span("2", 0, 4)]}
AS_JSON = [{"version": "1", "start": 0, "end": 3}, {"version": "2", "start": 3, "end": 5}]


def stamped_body(body: bytes, spans: Spans, dialect: Dialect = Dialect.CHOICES) -> bytes:
    reply = json.loads(body)
    stamp(reply, spans, dialect)
    return compact(reply)


@pytest.mark.parametrize("dialect", Dialect)
def test_an_error_is_unchanged(dialect: Dialect) -> None:
    body = b'{"error":{"code":500}}'

    assert stamped_body(body, SPANS, dialect) == body


def test_a_reply_without_choices_is_unchanged() -> None:
    assert stamped_body(b'{"choices":[]}', SPANS) == b'{"choices":[]}'


@pytest.mark.parametrize("dialect", [Dialect.RESPONSE, Dialect.MESSAGE])
def test_a_reply_with_one_text_has_one_list(dialect: Dialect) -> None:
    reply = json.loads(stamped_body(b'{"id":"x","error":null}', {0: SPANS[0]}, dialect))

    assert reply["weight_versions"] == AS_JSON


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        pytest.param({0: [Span("1", 0, 3)]}, [Span("1", 0, 3)], id="one"),
        pytest.param(
            {1: [Span("2", 0, 4, WeightName("1"))], 0: [Span("1", 0, 3)]},
            [Span("1", 0, 3), Span("2", 3, 7, WeightName("1"))],
            id="two, one after the other",
        ),
        pytest.param({0: [Span("1", 0, 3)], 1: None}, None, id="one without labels"),
        pytest.param({0: []}, [], id="no tokens"),
    ],
)
def test_spans_of_several_generations_are_numbered_continuously(
    spans: dict[int, list[Span] | None], expected: list[Span] | None
) -> None:
    assert joined(spans) == expected


def test_older_weights_whose_keys_were_read_are_named() -> None:
    assert Span("2", 0, 1, WeightName("1")).as_json() == {
        "version": "2",
        "start": 0,
        "end": 1,
        "kv_from": "1",
    }
    assert "kv_from" not in Span("2", 0, 1).as_json()


def test_numbers_keep_their_precision() -> None:
    numbers = [-1.9884440898895264, 1e-05, 5e-324, 0.1, 12345678901234567890]
    body = json.dumps({"choices": [{"index": 0, "logprobs": numbers}]}).encode()

    assert json.loads(stamped_body(body, SPANS))["choices"][0]["logprobs"] == numbers


@pytest.mark.parametrize(
    ("spans", "versions"),
    [
        pytest.param(SPANS, ("1", "2"), id="over a swap"),
        pytest.param({0: [Span("2", 0, 1)]}, ("2", "2"), id="one version"),
        pytest.param({0: []}, None, id="no tokens"),
        pytest.param({}, None, id="no choices"),
        pytest.param({0: None}, None, id="no labels"),
        pytest.param({0: None, 1: [Span("1", 0, 1)]}, ("1", "1"), id="one label"),
    ],
)
def test_the_headers_name_the_oldest_and_newest_version(
    spans: dict[int, list[Span] | None], versions: tuple[str, str] | None
) -> None:
    found = first_and_last(spans, {WeightName("1"): 0, WeightName("2"): 1})
    assert found == (versions and tuple(WeightName(version) for version in versions))


def test_after_a_rollback_the_headers_follow_the_tokens_of_a_choice() -> None:
    one, two = WeightName("1"), WeightName("2")
    order = {two: 1, one: 2}  # 1 was loaded again

    assert first_and_last({0: [Span("1", 0, 1), Span("2", 1, 2), Span("1", 2, 3)]}, order) == (
        one,
        one,
    )
    assert first_and_last({0: [Span("2", 0, 1), Span("1", 1, 2)]}, order) == (two, one)
    assert first_and_last({0: [Span("1", 0, 1), Span("2", 1, 2)]}, order) == (one, two)


def test_oldest_and_newest_follow_the_order_of_loads() -> None:
    spans = {0: [Span("9", 0, 1), Span("10", 1, 2)], 1: [Span("10", 0, 2)]}

    nine, ten = WeightName("9"), WeightName("10")
    assert first_and_last(spans, {nine: 4, ten: 5}) == (nine, ten)
