"""Bars as SVG."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlfleet.charts import WIDTH, Bar, Row, drawn, ticks


@pytest.mark.parametrize("length", [0.1, 0.5, 1.0])
def test_a_long_value_stays_within_the_picture(length):
    value = "3.12s CheckpointTruncated"
    picture = drawn([Row("policy-1", (Bar(0, length, "halted"),), value)])

    text = re.search(rf'<text x="([\d.]+)" y="20"([^>]*)>{value}<', picture)
    assert text is not None
    width = 7 * len(value)
    begin = float(text[1]) - (width if 'text-anchor="end"' in text[2] else 0)
    assert begin >= 0
    assert begin + width <= WIDTH


def test_a_value_is_not_written_into_a_bar_that_is_shorter():
    value = "0.32s so far"
    picture = drawn([Row("Resuming", (Bar(0.97, 0.03, "resuming"),), value)])

    text, bar = (
        re.search(rf'<text x="([\d.]+)"([^>]*)>{value}<', picture),
        re.search(r'rect x="([\d.]+)"', picture),
    )
    assert text is not None
    assert bar is not None
    assert 'text-anchor="end" style="fill: var(--ink)"' in text[2]
    assert float(text[1]) < float(bar[1])


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (10.0, [0, 2, 4, 6, 8, 10]),
        (0.36, [0, 0.1, 0.2, 0.3]),
        (7.0, [0, 1, 2, 3, 4, 5, 6, 7]),
        (3600.0, [0, 1000, 2000, 3000]),
    ],
)
def test_an_axis_has_few_round_ticks(seconds, expected):
    assert list(ticks(seconds)) == pytest.approx(expected)


@given(st.floats(1e-6, 1e9))
def test_the_ticks_of_any_axis_are_few_and_within_it(seconds):
    found = list(ticks(seconds))

    assert 2 <= len(found) <= 9
    assert found[-1] <= seconds * (1 + 1e-6)
