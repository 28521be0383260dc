"""Quantities of Kubernetes as bytes."""

from __future__ import annotations

from decimal import InvalidOperation

import pytest

from fleet_operator.core.quantities import bytes_of


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
def test_a_quantity_becomes_bytes(quantity, expected):
    assert bytes_of(quantity) == expected


@pytest.mark.parametrize("text", ["", "Gi", "1Xi", "one"])
def test_a_text_that_is_no_quantity_is_an_error(text):
    with pytest.raises(InvalidOperation):
        bytes_of(text)
