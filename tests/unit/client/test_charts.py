"""Bars as SVG."""

from __future__ import annotations

import re

import pytest

from rlfleet.charts import WIDTH, Bar, Row, drawn


@pytest.mark.parametrize("length", [0.1, 0.5, 1.0])
def test_a_long_value_stays_within_the_picture(length: float) -> None:
    value = "3.12s CheckpointTruncated"
    picture = drawn([Row("policy-1", (Bar(0, length, "halted"),), value)])

    text = re.search(rf'<text x="([\d.]+)" y="20"([^>]*)>{value}<', picture)
    assert text is not None
    width = 7 * len(value)
    begin = float(text[1]) - (width if 'text-anchor="end"' in text[2] else 0)
    assert begin >= 0
    assert begin + width <= WIDTH
