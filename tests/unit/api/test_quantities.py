"""Quantities of Kubernetes as bytes."""

from __future__ import annotations

from decimal import InvalidOperation

import pytest

from rlfleet_resources.quantities import bytes_of, comparable


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        (1, 1),
        (1024, 1024),
        ("1024", 1024),
        ("1Ki", 1024),
        ("1k", 1000),
        ("64Gi", 64 * 1024**3),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("1.0000000001k", 1001),
        ("2T", 2 * 10**12),
        ("3Ei", 3 * 1024**6),
        ("7P", 7 * 10**15),
    ],
)
def test_a_quantity_is_converted_to_bytes(quantity, expected):
    assert bytes_of(quantity) == expected


@pytest.mark.parametrize("text", ["", "Gi", "1Xi", "one"])
def test_an_invalid_quantity_is_an_error(text):
    with pytest.raises(InvalidOperation):
        bytes_of(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        ("1Gi", "1024Mi"),
        ("500m", "0.5"),
        ("100", "1e2"),
        ("1E", "1e18"),
        ("1n", "0.000000001"),
        ("+1.50", "1500m"),
    ],
)
def test_equal_amounts_compare_equal_in_any_spelling(one, other):
    assert comparable(one) == comparable(other)


@pytest.mark.parametrize(
    "thing", ["", "one", "NaN", "Infinity", "1e99999999999999999999", None, True, {"a": 1}, 1.5]
)
def test_an_invalid_quantity_is_compared_as_text(thing):
    assert comparable(thing) == thing


def test_a_huge_exponent_makes_no_huge_text():
    assert len(comparable("1e999999")) < 20
